import os
import signal
import threading
import time

import numpy as np
import pytest

from voxcpm_constants.errors import BundleError
from voxcpm_constants.step_models import AUDIO_VAE_DECODER, RESIDUAL_LM_STEP
from voxcpm_runtime.backends.core_ai.worker import CoreAIWorker, _Child
from voxcpm_runtime.backends.loading import load_step_models
from voxcpm_runtime.bundle.opening import open_bundle

pytest.importorskip("coreai", exc_type=ImportError)

NAMES = (AUDIO_VAE_DECODER, RESIDUAL_LM_STEP)


@pytest.fixture(scope="module", autouse=True)
def private_cache(shared_compiled_27):
    """Not the empty cache of other backends' tests."""
    return shared_compiled_27


@pytest.fixture(scope="module")
def bundle(tiny_bundle_27):
    return open_bundle(tiny_bundle_27, "fp32")


def test_streams_continue_when_the_worker_is_replaced(bundle, monkeypatch):
    """Contexts and caches migrate: two streams of six calls with a limit of five outputs per process."""
    here = load_step_models(bundle, "coreai", names=NAMES)
    started: list[_Child] = []
    begin = _Child.__init__
    monkeypatch.setattr(
        _Child, "__init__", lambda self, *given: (started.append(self), begin(self, *given))[1]
    )
    worker = CoreAIWorker(bundle.folder, "fp32", NAMES, max_outputs=5, prepared_at=3)
    rng = np.random.default_rng(0)
    states = {name: (worker.step_models[name].new_state(), here[name].new_state()) for name in NAMES}
    for position in range(6):
        for name, (theirs, ours) in states.items():
            declared = bundle.manifest.step_models[name].at(0)
            given = {t.name: rng.standard_normal(t.shape_at(0)).astype(np.float32) for t in declared.inputs}
            if "position" in given:
                given["position"] = np.array([position], np.int32)
            found, expected = worker.step_models[name](given, theirs), here[name](given, ours)
            assert found.keys() == expected.keys()
            for output in expected:
                np.testing.assert_array_equal(found[output], expected[output])
    rows, expected = (state.rows(0, 6) for state in states[RESIDUAL_LM_STEP])
    for name in expected:
        np.testing.assert_array_equal(rows[name], expected[name])
        assert rows[name].any()
    # Twelve outputs at five per process, and the spare process.
    assert len(started) in (3, 4)
    assert all(child._process.poll() is not None for child in started[:-2])


def test_worker_errors_are_raised_and_its_exit_is_one_line(bundle):
    worker = CoreAIWorker(bundle.folder, "fp32", NAMES[:1])
    with pytest.raises(ValueError, match="expected latents"):
        worker.step_models[AUDIO_VAE_DECODER]({}, None)
    worker._child._process.kill()
    with pytest.raises(BundleError, match=r"the Core AI process died \(SIGKILL\); open the bundle again"):
        worker.step_models[AUDIO_VAE_DECODER].new_state()


def test_response_to_an_interrupted_call_goes_to_no_other_call(bundle):
    worker = CoreAIWorker(bundle.folder, "fp32", NAMES[:1])
    decode, declared = worker.step_models[AUDIO_VAE_DECODER], bundle.manifest.step_models[AUDIO_VAE_DECODER]
    shape, child = declared.inputs[0].shape_at(0), worker._child._process.pid
    first, second = ({"latents": np.full(shape, value, np.float32)} for value in (0.0, 1.0))
    expected = decode(second, decode.new_state())["audio"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt():
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        os.kill(child, signal.SIGCONT)

    state = decode.new_state()
    # A slow call.
    os.kill(child, signal.SIGSTOP)
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            decode(first, state)
    finally:
        signal.signal(signal.SIGINT, before)
    np.testing.assert_array_equal(decode(second, decode.new_state())["audio"], expected)
