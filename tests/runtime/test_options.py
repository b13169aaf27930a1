import pytest

from voxcpm_constants.errors import InputError
from voxcpm_runtime.options import GenerationOptions, checked_options


@pytest.mark.parametrize(
    "given",
    [
        {"cfg_value": 10.5},
        {"cfg_value": float("nan")},
        {"inference_timesteps": 10.0},
        {"max_len": True},
        {"max_len": 0},
    ],
)
def test_out_of_range_value_is_named_with_its_range(given):
    with pytest.raises(InputError, match=rf"^{next(iter(given))} must be a .*number from .* to .*, got"):
        GenerationOptions(**given)


def test_fast_means_five_euler_steps_unless_another_number_is_given():
    assert GenerationOptions().inference_timesteps == 10
    assert GenerationOptions(fast=True).inference_timesteps == 5
    five = {"inference_timesteps": 5, "fast": True}
    assert GenerationOptions(**five).changed() == five
    assert GenerationOptions(inference_timesteps=10).changed() == {}
    for steps in (6, 10):
        with pytest.raises(InputError, match=f"got both: fast means 5, not {steps}"):
            GenerationOptions(fast=True, inference_timesteps=steps)


def test_denoise_true_is_rejected_and_false_accepted():
    assert checked_options({"normalize": False, "denoise": False}) == GenerationOptions()
    with pytest.raises(InputError, match="denoise is not supported"):
        checked_options({"denoise": True})
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'cfg': did you mean cfg_value\?"):
        checked_options({"cfg": 2})


@pytest.mark.parametrize(
    ("tokens", "options", "bound"),
    [
        (5, {}, 40),  # int(5 * 6 + 10)
        (5, {"max_len": 12}, 12),
        (5, {"retry_badcase_ratio_threshold": 1.5}, 17),
        (1000, {}, 4096),
        # Upstream has no room for a minimum: its speech would end earlier.
        (4, {"min_len": 100}, 102),
        (4, {"min_len": 100, "max_len": 101}, 101),
    ],
)
def test_limit_equals_upstreams(tokens, options, bound):
    assert GenerationOptions(**options).patch_bound(tokens) == bound
