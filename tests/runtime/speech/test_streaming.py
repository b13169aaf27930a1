"""Streaming gives the samples of offline generation in chunks of any size, and can be cancelled."""

import contextlib
import gc
import itertools
import threading
import time
import weakref

import numpy as np
import pytest

from voxcpm_constants.errors import InputError
from voxcpm_runtime.speech.request import Cancelled, CancelToken

TEXT = "hello there."
AUDIO = (np.random.default_rng(0).standard_normal(45).astype(np.float32) * 0.1, 1000)
MODES = {
    "zero-shot": {},
    "continuation": {"prompt_wav_path": AUDIO, "prompt_text": "so it is "},
    "reference": {"reference_wav_path": AUDIO},
    "combined": {"prompt_wav_path": AUDIO, "prompt_text": "so ", "reference_wav_path": AUDIO},
}


@pytest.mark.parametrize("mode", MODES)
def test_chunks_of_any_size_equal_offline_generation(tts, mode, architecture):
    if "reference_wav_path" in MODES[mode] and architecture.generation == "voxcpm":
        pytest.skip("a reference voice needs VoxCPM2")
    given = MODES[mode] | {"seed": 3, "min_len": 9, "max_len": 11, "retry_badcase": False}
    whole, patch = tts.generate(TEXT, **given), architecture.patch_output_samples
    assert len(whole) == 11 * patch
    for size, first in itertools.product((1, 5, 40), (None, 3)):
        chunks = list(tts.generate_streaming(TEXT, chunk_patches=size, first_chunk_patches=first, **given))
        np.testing.assert_array_equal(np.concatenate(chunks), whole)
        begun = min(first or size, 11)
        full, rest = divmod(11 - begun, size)
        assert [len(chunk) // patch for chunk in chunks] == [begun, *[size] * full, *[rest] * (rest > 0)]


def test_the_first_patch_is_decoded_before_the_second_is_predicted(tts, models):
    """On few cores the prediction would delay the first audio; later patches are decoded beside it."""
    order = []
    for name in ("feat_encoder", "audio_vae_decoder"):
        function = models[name].function

        def noted(inputs, state, name=name, function=function):
            time.sleep(0.05 * (name == "audio_vae_decoder"))
            order.append(name)
            return function(inputs, state)

        models[name].function = noted
    list(tts.generate_streaming(TEXT, seed=1, chunk_patches=1, min_len=3, max_len=4))
    assert order[:2] == ["audio_vae_decoder", "feat_encoder"]


@pytest.fixture
def cancelling(models):
    """cancelling(at): a token that the DiT cancels at that call, and a list of its calls; a patch takes nine."""

    def make(at):
        token, calls, function = CancelToken(), [], models["locdit_step"].function

        def step(inputs, state):
            calls.append(1)
            if len(calls) == at:
                token.cancel()
            return function(inputs, state)

        models["locdit_step"].function = step
        return token, calls

    return make


def test_cancelled_speech_ends_between_two_euler_steps_and_may_keep_its_part(tts, cancelling, architecture):
    token, calls = cancelling(at=9 * 3 + 4)
    for _ in range(2):  # for good
        with pytest.raises(Cancelled, match="was cancelled"):
            tts.generate(TEXT, seed=1, cancel=token)
        assert len(calls) == 9 * 3 + 4
    whole = tts.generate(TEXT, seed=1, retry_badcase=False, max_len=9)
    token, _ = cancelling(at=9 * 3 + 4)
    speech = tts.speak(TEXT, seed=1, cancel=token, keep_partial=True)
    patches, left = divmod(len(speech.audio), architecture.patch_output_samples)
    assert (speech.cancelled, speech.stopped, left) == (True, False, 0)
    # The third patch may be in the decoder when the fourth is given up.
    assert patches in (2, 3)
    np.testing.assert_array_equal(speech.audio, whole[: len(speech.audio)])
    for keep in (True, False):
        token, _ = cancelling(at=9 * 3 + 4)
        chunks = tts.generate_streaming(TEXT, seed=1, chunk_patches=1, cancel=token, keep_partial=keep)
        with contextlib.nullcontext() if keep else pytest.raises(Cancelled):
            assert len(list(chunks)) in (2, 3)


def test_closing_a_stream_aborts_the_current_patch(tts, models):
    begun, allowed = threading.Event(), threading.Event()
    function = models["locdit_step"].function
    calls = []

    def step(inputs, state):
        calls.append(1)
        if len(calls) > 9:
            begun.set()
            allowed.wait(10)
            time.sleep(0.05)
        return function(inputs, state)

    models["locdit_step"].function = step
    threads = threading.active_count()
    chunks = tts.generate_streaming(TEXT, seed=1, chunk_patches=1)
    next(chunks)
    assert begun.wait(10)
    closing = threading.Thread(target=chunks.close)
    closing.start()
    time.sleep(0.2)
    allowed.set()
    closing.join(10)
    assert threading.active_count() == threads
    assert len(calls) < 18  # the second patch was given up


def test_a_cancelled_generation_frees_its_caches(tts, models, cancelling, monkeypatch):
    token, _ = cancelling(at=20)
    states = []
    new_state = type(models["base_lm_step"]).new_state

    def counted(self):
        state = new_state(self)
        states.append(weakref.ref(state))
        return state

    monkeypatch.setattr(type(models["base_lm_step"]), "new_state", counted)
    with pytest.raises(Cancelled) as held:
        tts.generate(TEXT, seed=1, cancel=token)
    # This holds even while the error and its traceback are referenced.
    gc.collect()
    assert held.value is not None
    assert len(states) > 2
    assert not [state for state in states if state() is not None]


def test_closed_model_raises(tts):
    with tts as same:
        assert same is tts
    with pytest.raises(InputError, match="this VoxCPM is closed"):
        tts.generate(TEXT)
