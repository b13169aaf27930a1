"""All step models of a patch in one call, as on a GPU, with ONNX Runtime's CPU provider."""

from __future__ import annotations

import copy
import gc
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_constants.step_models import BASE_LM_STEP, RESIDUAL_LM_STEP
from voxcpm_runtime.backends.gpu.device import Device
from voxcpm_runtime.backends.gpu.joined_patch import joined_patch
from voxcpm_runtime.backends.loading import load_portable_step_model
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.voxcpm import VoxCPM
from waiting import until

# `Device.check` refuses GPUs with older ones, whose ONNX Runtime lacks some of the nodes.
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="a GPU needs Python 3.11 or newer"),
]

STEPS = 4


@pytest.fixture(scope="module", params=["tiny_solver_bundle", "second_solver_bundle"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    """Both generations: conditions that are added, and concatenated."""
    return open_bundle(request.getfixturevalue(request.param), "fp16")


def models(bundle: Bundle, **options: Any) -> dict[str, Any]:
    given = {"threads": 1, "device": Device("cpu"), **options}
    return {
        name: load_portable_step_model(bundle.folder, bundle.manifest, bundle.precision, name, **given)
        for name in bundle.manifest.step_models
    }


def joined(bundle: Bundle, loaded: dict[str, Any]) -> Any:
    a, sizes = bundle.architecture, bundle.manifest.sizes
    return joined_patch(loaded, Device("cpu"), sizes, a.traits, bundle.constants)


def over(driver: Driver, step_models: dict[str, Any], next_patch: Any = None) -> Driver:
    """The same driver with other step models."""
    other = copy.copy(driver)
    other.models, other.next_patch = step_models, next_patch
    return other


class Counted:
    """A `NextPatch` that counts its calls, and those begun before the previous patch was known."""

    def __init__(self, call: Any) -> None:
        self.new_states = call.new_states
        self.call = call
        self.count = self.ahead = 0

    def begin(self, inputs: Any, base: Any, residual: Any, before: Any) -> Any:
        self.count += 1
        self.ahead += before is not None
        return self.call.begin(inputs, base, residual, before)


class Ending:
    """A base LM, or a `NextPatch`, whose stop head ends the speech where its logits differ by more than a threshold."""

    def __init__(self, call: Any, threshold: float) -> None:
        self.call = call
        self.threshold = threshold
        self.seen: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.call, name)

    def __call__(self, *arguments: Any) -> Any:
        return self.ended(self.call(*arguments))

    def begin(self, *arguments: Any) -> Any:
        pending: Future[Any] = Future()
        self.call.begin(*arguments).add_done_callback(
            lambda done: pending.set_result(self.ended(done.result()))
        )
        return pending

    def ended(self, outputs: dict[str, Any]) -> dict[str, Any]:
        logits = outputs["stop_logits"]
        self.seen.append(float(logits[0, -1, 1] - logits[0, -1, 0]))
        return {**outputs, "stop_logits": logits - np.array([0, self.threshold], np.float32)}


@pytest.fixture(scope="module")
def voices(bundle: Bundle) -> tuple[VoxCPM, VoxCPM, Counted]:
    """A model that calls step models separately, one that joins them, and the latter's calls."""
    loaded = models(bundle)
    counted = Counted(joined(bundle, loaded))
    given = (bundle.architecture, bundle.manifest.sizes, bundle.constants)
    alone, together = Driver(*given, loaded), Driver(*given, models(bundle), counted)
    return VoxCPM(bundle, alone, "alone"), VoxCPM(bundle, together, "together"), counted


def options(seed: int, **more: Any) -> dict[str, Any]:
    return {
        "seed": seed, "min_len": 6, "max_len": 6, "retry_badcase": False, "inference_timesteps": STEPS, **more
    }  # fmt: skip


def test_joined_patches_equal_separate_step_models(voices: tuple[VoxCPM, VoxCPM, Counted]) -> None:
    """Up to rounding: the projections between them are another library's products."""
    alone, together, counted = voices
    for seed in range(3):
        counted.count = 0
        expected = alone.speak("Hello there.", **options(seed)).latents
        found = together.speak("Hello there.", **options(seed)).latents
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.9999
        # The first patch follows the text.
        assert counted.count == 5


def test_joined_speech_stops_where_separate_models_do(voices: tuple[VoxCPM, VoxCPM, Counted]) -> None:
    """Random weights never stop, so the stop head gets another threshold: one that only one patch of many exceeds."""
    alone, together, _ = voices
    given = options(0, min_len=3, max_len=20)

    def spoken(tts: VoxCPM, threshold: float) -> tuple[int, list[float]]:
        driver = tts.driver
        call: Any = driver.models[BASE_LM_STEP] if driver.next_patch is None else driver.next_patch
        ending = Ending(call, threshold)
        if driver.next_patch is None:
            ended = over(driver, {**driver.models, BASE_LM_STEP: ending})
        else:
            ended = over(driver, driver.models, ending)
        return len(VoxCPM(tts.bundle, ended, "ending").speak("Hello there.", **given).latents), ending.seen

    length, seen = spoken(alone, np.inf)
    assert length == 20
    differences = np.array(seen[-19:])
    # Logits follow a patch, so those of the fifth patch, the first that may end the speech, are the fourth.
    greatest = 3 + int(np.argmax(differences[3:]))
    assert 3 < greatest < 18
    threshold = float(differences[greatest] + max(differences[3:greatest])) / 2
    assert spoken(alone, threshold)[0] == spoken(together, threshold)[0] == greatest + 2
    np.testing.assert_allclose(spoken(together, np.inf)[1], differences, atol=0.05 * np.ptp(differences))


def test_streams_do_not_mix(voices: tuple[VoxCPM, VoxCPM, Counted]) -> None:
    _, together, _ = voices

    def spoken(seed: int) -> Any:
        return together.speak(f"Number {seed}.", **options(seed)).latents

    expected = [spoken(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(spoken, range(4)))
    assert all(map(np.array_equal, found, expected))


def test_other_step_counts_use_separate_models(voices: tuple[VoxCPM, VoxCPM, Counted]) -> None:
    alone, together, counted = voices
    counted.count = 0
    expected = alone.speak("Hello.", **options(1, inference_timesteps=5)).latents
    np.testing.assert_array_equal(
        together.speak("Hello.", **options(1, inference_timesteps=5)).latents, expected
    )
    assert not counted.count


@pytest.mark.parametrize("ends", [False, True])
def test_patch_starts_before_the_previous_result_is_read(
    voices: tuple[VoxCPM, VoxCPM, Counted], ends: bool
) -> None:
    """Patches are bit-identical. A caller's noise source is not drawn from in advance."""
    _, together, counted = voices
    ahead = Counted(counted.call)
    call = Ending(ahead, -1e9) if ends else ahead
    tts = VoxCPM(together.bundle, over(together.driver, together.driver.models, call), "ahead")
    given = options(7, min_len=2 if ends else 6)
    expected = tts.speak("Hello there.", rng=np.random.default_rng(7), **{**given, "seed": None}).latents
    assert not ahead.ahead
    found = tts.speak("Hello there.", **given).latents
    np.testing.assert_array_equal(found, expected)
    assert len(found) == (4 if ends else 6)
    assert ahead.ahead == (3 if ends else 4)


def test_a_failed_call_keeps_no_caches(
    voices: tuple[VoxCPM, VoxCPM, Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting for the garbage collector, as memory may be short."""
    _, together, counted = voices
    calls, made = counted.call._calls, 0
    computed = calls._call

    def failing(*arguments: Any) -> Any:
        nonlocal made
        made += 1
        if made == 3:
            raise RuntimeError("no more")
        return computed(*arguments)

    together.speak("Hello there.", **options(1))
    gc.collect()
    free = len(calls._pool._free)
    monkeypatch.setattr(calls, "_call", failing)
    gc.disable()
    try:
        with pytest.raises(RuntimeError, match="no more"):
            together.speak("Hello there.", **options(1))
        # The worker releases a call after reporting its end.
        assert until(lambda: len(calls._pool._free) == free, 5)
    finally:
        gc.enable()


def states_of(call: Any) -> tuple[Any, Any]:
    base, residual = call.new_states()
    return base, residual


def inputs_of(call: Any) -> dict[str, np.ndarray]:
    """Random inputs of a joined call, at position 9."""
    rng = np.random.default_rng(0)
    return {
        name: np.full(i.fixed_shape, 9, np.int32)
        if i.dtype == "INT32"
        else rng.standard_normal(i.fixed_shape, np.float32)
        for name, i in call._inputs.items()
    }


def test_states_of_different_calls_are_rejected(bundle: Bundle) -> None:
    """A call is captured for a pair of caches, so mixed pairs would multiply captures."""
    loaded = models(bundle)
    call, other = joined(bundle, loaded), joined(bundle, loaded)
    inputs, (base, residual), (second, _) = inputs_of(call), states_of(call), states_of(call)
    call.begin(inputs, base, residual)
    own = [loaded[name].new_state() for name in (BASE_LM_STEP, RESIDUAL_LM_STEP)]
    processors = [m.new_state() for m in models(bundle, device=None).values() if m.state][:2]
    for wrong in ((second, residual), (residual, base), states_of(other), own, processors, (base, own[1])):
        with pytest.raises(ValueError, match="the two states that one call of `new_states` returned"):
            call.begin(inputs, *wrong)


def test_captured_calls_grow_with_concurrent_streams(bundle: Bundle) -> None:
    """Caches of finished streams are reused as pairs, whichever of the two is released first."""
    call = joined(bundle, models(bundle))
    inputs = inputs_of(call)
    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [0, 3, 4, 1, 2, 5], [2, 1, 5, 3, 0, 4]):
        states = [state for _ in range(3) for state in states_of(call)]
        for stream in range(3):
            call.begin(inputs, *states[2 * stream : 2 * stream + 2]).result()
        ended = dict(enumerate(states))
        del states
        for index in order:
            del ended[index]
    assert len({buffers for _, buffers, _ in call._calls._bound}) == 3


def test_next_patch_reads_written_rows(bundle: Bundle) -> None:
    """A saved voice fills both caches with rows of other states."""
    loaded = models(bundle)
    call, rng = joined(bundle, loaded), np.random.default_rng(1)
    inputs, filled, copied, blank = inputs_of(call), states_of(call), states_of(call), states_of(call)
    for name, state, target in zip((BASE_LM_STEP, RESIDUAL_LM_STEP), filled, copied, strict=True):
        width = loaded[name].inputs["embeddings"].shapes[0][-1]
        embeddings = rng.standard_normal((1, 16, width), np.float32)
        loaded[name]({"embeddings": embeddings, "position": np.array([0], np.int32)}, state)
        target.set_rows(0, state.rows(0, 9))
    patches = [call.begin(inputs, *states).result()["patch"] for states in (filled, copied, blank)]
    np.testing.assert_array_equal(patches[1], patches[0])
    assert not np.array_equal(patches[2], patches[0])
    for state, target in zip(filled, copied, strict=True):
        for name, rows in state.rows(0, 10).items():
            assert rows[:, :, 9].any()
            np.testing.assert_array_equal(target.rows(0, 10)[name], rows)


@pytest.mark.parametrize("name", [BASE_LM_STEP, RESIDUAL_LM_STEP])
def test_step_model_of_another_form_is_called_separately(
    tiny_solver_bundle: Path, tiny_parts_bundle: Path, name: str
) -> None:
    """One in several packages, and one that returns rows."""
    bundle, other = (open_bundle(folder, "fp16") for folder in (tiny_solver_bundle, tiny_parts_bundle))
    loaded = models(bundle)
    assert joined(bundle, loaded) is not None
    loaded[name] = load_portable_step_model(other.folder, other.manifest, "fp16", name, device=Device("cpu"))
    assert joined(bundle, loaded) is None
