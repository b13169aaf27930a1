"""All step models of a patch in one call, as on a GPU, with ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_constants.step_models import STEP_MODEL_NAMES, StepSizes
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.convert import convert
from voxcpm_runtime.backends.devices import Device
from voxcpm_runtime.backends.loading import load_portable_step_model
from voxcpm_runtime.backends.portable.joined_patch import joined_patch
from voxcpm_runtime.backends.portable.lowering import lower
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.speech.cancellation import Cancelled, CancelToken
from voxcpm_runtime.voxcpm import VoxCPM

STEPS = 4


@pytest.fixture(scope="module", params=["tiny_checkpoint", "second_checkpoint"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Both generations: conditions that are added and that lie side by side."""
    sizes = StepSizes(kv_length=128, solver_steps=STEPS)
    folder = tmp_path_factory.mktemp("solver") / "bundle"
    checkpoint = Checkpoint.open(request.getfixturevalue(request.param))
    convert(checkpoint, folder, precisions=("fp16",), sizes=sizes)
    return open_bundle(folder, "fp16")


def models(bundle: Bundle, **options: Any) -> dict[str, Any]:
    given = {"threads": 1, "mode": "half", "device": Device("cpu"), **options}
    return {
        name: load_portable_step_model(bundle.folder, bundle.manifest, bundle.precision, name, **given)
        for name in bundle.manifest.step_models
    }


def joined(bundle: Bundle, loaded: dict[str, Any]) -> Any:
    a, sizes = bundle.architecture, bundle.manifest.sizes
    return joined_patch(loaded, Device("cpu"), sizes, a.traits, bundle.constants)


class Counted:
    """A `NextPatch` that counts its calls."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.count = 0

    def __call__(self, *arguments: Any) -> Any:
        self.count += 1
        return self.call(*arguments)


@pytest.fixture(scope="module")
def voices(bundle: Bundle) -> tuple[VoxCPM, VoxCPM, Counted]:
    """One that calls step models one by one, one that joins them, and the latter's calls."""
    loaded = models(bundle)
    counted = Counted(joined(bundle, loaded))
    given = (bundle.architecture, bundle.manifest.sizes, bundle.constants)
    alone, together = Driver(*given, loaded), Driver(*given, models(bundle), counted)
    return VoxCPM(bundle, alone, "alone"), VoxCPM(bundle, together, "together"), counted


def options(seed: int, **more: Any) -> dict[str, Any]:
    return {
        "seed": seed, "min_len": 6, "max_len": 6, "retry_badcase": False, "inference_timesteps": STEPS, **more
    }  # fmt: skip


def test_patches_are_those_of_the_step_models_one_by_one(voices: tuple[VoxCPM, VoxCPM, Counted]) -> None:
    """Up to rounding: the projections between them are another library's products."""
    alone, together, counted = voices
    for seed in range(3):
        counted.count = 0
        expected = alone.speak("Hello there.", **options(seed)).latents
        found = together.speak("Hello there.", **options(seed)).latents
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.9999
        # The first patch follows the text.
        assert counted.count == 5


def test_patches_agree_with_float32(bundle: Bundle, voices: tuple[VoxCPM, VoxCPM, Counted]) -> None:
    plain = Driver(
        bundle.architecture,
        bundle.manifest.sizes,
        bundle.constants,
        models(bundle, mode="plain", device=None),
    )
    expected = VoxCPM(bundle, plain, "plain").speak("Hello there.", **options(5)).latents
    found = voices[1].speak("Hello there.", **options(5)).latents
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.999


def test_a_gpu_launches_few_nodes_for_an_euler_step(bundle: Bundle) -> None:
    import onnx

    path = bundle.folder / bundle.manifest.package_path("fp16", "locdit_solve")
    graph = onnx.load_from_string(lower(path, mode="half").model).graph
    counts = Counter(node.op_type for node in graph.node)
    steps, layers = STEPS - 1, bundle.architecture.dit_config.num_layers
    # Guidance needs no largest magnitude and no means in float32.
    assert not counts.keys() & {"Abs", "ReduceMax", "ReduceMean"}
    # The last layer has other queries than keys; x comes in and goes out; guidance is one product.
    per_step = 5 * layers + 1 + 2 + 1
    # Times, the length of a step and the previous patch are embedded once.
    assert counts["FusedMatMul"] == per_step * steps + 2 + 1 + 1
    assert counts["MultiHeadAttention"] == layers * steps


def test_the_speech_ends_where_it_does_one_by_one(voices: tuple[VoxCPM, VoxCPM, Counted]) -> None:
    alone, together, _ = voices
    given = options(0, min_len=1, max_len=40)
    expected = alone.speak("Hello there.", **given).latents
    assert together.speak("Hello there.", **given).latents.shape == expected.shape


def test_streams_do_not_mix(voices: tuple[VoxCPM, VoxCPM, Counted]) -> None:
    _, together, _ = voices

    def spoken(seed: int) -> Any:
        return together.speak(f"Number {seed}.", **options(seed)).latents

    expected = [spoken(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(spoken, range(4)))
    assert all(map(np.array_equal, found, expected))


def test_a_cancelled_generation_makes_no_more_calls(voices: tuple[VoxCPM, VoxCPM, Counted]) -> None:
    _, together, counted = voices
    token = CancelToken()
    counted.count = 0
    chunks = together.generate_streaming(
        "Hello there.", **options(0, min_len=30, max_len=30), first_chunk_patches=1, cancel=token
    )
    next(chunks)
    token.cancel()
    with pytest.raises(Cancelled):
        list(chunks)
    assert counted.count < 29


@pytest.mark.parametrize("other", [{"inference_timesteps": 5}, {"use_cfg_zero_star": False}])
def test_other_solvers_go_one_by_one(voices: tuple[VoxCPM, VoxCPM, Counted], other: dict[str, Any]) -> None:
    alone, together, counted = voices
    counted.count = 0
    expected = alone.speak("Hello.", **options(1, **other)).latents
    np.testing.assert_array_equal(together.speak("Hello.", **options(1, **other)).latents, expected)
    assert not counted.count


def test_states_of_the_processor_are_refused(bundle: Bundle) -> None:
    call = joined(bundle, models(bundle))
    states = [m.new_state() for m in models(bundle, device=None).values() if m.state][:2]
    with pytest.raises(TypeError, match="must be on its GPU"):
        call({}, *states)


@pytest.mark.parametrize("form", ["tiny_bundle", "tiny_batch_bundle", "tiny_parts_bundle", "tiny_bundle_15"])
def test_other_forms_are_called_one_by_one(request: pytest.FixtureRequest, form: str) -> None:
    other: Path = request.getfixturevalue(form)
    opened = open_bundle(other, "fp16")
    assert set(opened.manifest.step_models) <= set(STEP_MODEL_NAMES) | {"locdit_solve"}
    assert joined(opened, models(opened)) is None
