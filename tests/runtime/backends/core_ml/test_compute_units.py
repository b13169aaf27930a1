import pytest

from voxcpm_constants import step_models as names
from voxcpm_runtime.backends.core_ml.compute_units import DEFAULT_UNITS, chosen_units, read_compute_units

NAMES = (names.AUDIO_VAE_DECODER, names.BASE_LM_STEP, names.LOCDIT_STEP)


def test_measured_unit_overrides_the_default_and_an_explicit_one_both():
    decoder, base, dit = NAMES
    measured = {dit: "cpu_and_gpu", base: "cpu", "a model of another bundle": "cpu"}
    assert set(DEFAULT_UNITS) == {*names.STEP_MODEL_NAMES, names.LOCDIT_SOLVE}
    assert chosen_units("auto", NAMES, measured)[dit] == "cpu_and_gpu"
    assert chosen_units({dit: "all"}, NAMES, measured) == {decoder: "cpu", base: "cpu", dit: "all"}
    assert set(chosen_units("all", NAMES, measured).values()) == {"all"}
    units = {decoder: "all", base: "all", dit: "cpu_and_ne"}
    assert chosen_units({"*": "all", dit: "auto"}, NAMES) == units
    assert read_compute_units([]) == "auto"
    assert read_compute_units(["cpu", f"{dit}=all"]) == {"*": "cpu", dit: "all"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["gpu"], "compute units must be one of auto, all, cpu, cpu_and_gpu, cpu_and_ne, got 'gpu'"),
        (["locdit_step="], "cpu_and_ne, got ''"),
        (["decoder=cpu"], "unknown step model 'decoder' for compute units: expected one of "),
        (["cpu", "all"], "given twice: cpu and all"),
    ],
)
def test_invalid_units_fail_before_opening(refusal, given, message):
    options = [part for word in given for part in ("--compute-units", word)]
    assert message in refusal("generate", "missing", "--text", "hello", "-o", "out.wav", *options)
