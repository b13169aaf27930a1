"""The whole Core ML path, on the stand-in (tests/coreml_stand_in): it speaks what the portable executor speaks.

The stand-in computes an fp32 package as the portable backend does, and any other as the executor does in its faithful
mode, in which every fp16 result and with it every state is rounded to fp16: so states lose nothing on their way through
Core ML's fp16, and speech is compared bit for bit with a driver over the same executor.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from voxcpm_runtime.backends.loading import load_portable_step_model
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.speech import spine
from voxcpm_runtime.voxcpm import VoxCPM

GIVEN = {"seed": 3, "min_len": 4, "max_len": 4, "retry_badcase": False, "every_word": False}
TEXT = "one two three."

# A package for each form of state, with the same arithmetic on both sides.
BUNDLES = [
    pytest.param(("tiny_bundle", "fp32"), marks=pytest.mark.long),
    ("tiny_bundle", "fp16"),
    pytest.param(("tiny_bundle_15", "int8"), marks=pytest.mark.long),
    ("tiny_parts_bundle", "fp16"),
    pytest.param(("phone_bundle", "int8"), marks=pytest.mark.long),
]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    """A user's cache that all tests here share: lowering in faithful mode costs a second a package."""
    folder = tmp_path_factory.getbasetemp() / "coreml-cache"
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(folder))
    return folder


def portable(folder, precision):
    """A bundle on the portable backend, with the stand-in's arithmetic."""
    bundle = open_bundle(folder, precision)
    manifest, mode = bundle.manifest, "plain" if precision == "fp32" else "faithful"
    models = {
        name: load_portable_step_model(bundle.folder, manifest, bundle.precision, name, mode=mode, threads=1)
        for name in manifest.step_models
    }
    return VoxCPM(bundle, Driver(bundle.architecture, manifest.sizes, bundle.constants, models))


@pytest.fixture(params=BUNDLES, ids="-".join)
def converted(request):
    """A bundle and a precision of it: converted before the stand-in is there, with which it would be compiled, too."""
    name, precision = request.param
    return request.getfixturevalue(name), precision


def test_speech_equals_the_portable_backend_bit_for_bit(
    converted,
    core_ml,  # noqa: ARG001 - in place
    tmp_path,
):
    prompt = np.random.default_rng(0).standard_normal(3200).astype(np.float32) * 0.1
    spoken = []
    for index, opened in enumerate(
        (VoxCPM.from_bundle(converted[0], precision=converted[1]), portable(*converted))
    ):
        with opened as tts:
            whole = tts.speak(TEXT, **GIVEN)
            streamed = np.concatenate(list(tts.generate_streaming(TEXT, chunk_patches=1, **GIVEN)))
            np.testing.assert_array_equal(whole.audio, streamed)
            made = tts.create_voice((prompt, 16000), "the you and ", name="ada")
            voice = made.save(tmp_path / f"{index}.voice")
            first, again = (tts.speak(TEXT, voice=voice, **GIVEN) for _ in "12")
            np.testing.assert_array_equal(first.audio, again.audio)
            spoken.append((whole.latents, whole.audio, voice.prompt, first.latents, first.audio))
    for ours, expected in zip(*spoken, strict=True):
        np.testing.assert_array_equal(ours, expected)
    assert spoken[0][1].flags.writeable


def test_threads_do_not_predict_concurrently(core_ml, tiny_bundle):
    with VoxCPM.from_bundle(tiny_bundle, precision="fp16") as tts:
        alone = [tts.generate(TEXT, **{**GIVEN, "seed": seed}) for seed in range(3)]
        with ThreadPoolExecutor(3) as threads:
            jobs = [threads.submit(tts.generate, TEXT, **{**GIVEN, "seed": seed}) for seed in range(3)]
    for one, job in zip(alone, jobs, strict=True):
        np.testing.assert_array_equal(one, job.result())
    assert len({event["thread"] for event in core_ml.events("predict")}) == 4


@pytest.mark.parametrize("backend", ["coreml", "portable"])
def test_core_ml_decodes_in_the_calling_thread(core_ml, tiny_bundle, monkeypatch, backend):
    """coremltools holds the GIL during predictions, so a second thread would gain nothing."""
    asked = []
    pool = spine.ThreadPoolExecutor
    monkeypatch.setattr(spine, "ThreadPoolExecutor", lambda *given: asked.append(1) or pool(*given))
    with VoxCPM.from_bundle(tiny_bundle, precision="fp16", backend=backend) as tts:
        tts.generate(TEXT, **GIVEN)
    assert bool(asked) == (backend == "portable")
    assert {event["thread"] for event in core_ml.events("predict")} <= {threading.current_thread().name}
