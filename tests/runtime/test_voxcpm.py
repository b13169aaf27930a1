import contextlib

import numpy as np
import pytest

from voxcpm_constants.errors import InputError, VoxCPMWarning
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.speech.results import TooLongWarning

TEXT = "hello there."  # 12 characters and ▁: 13 tokens


@pytest.fixture
def prompt_audio():
    """5 patches of 20 samples."""
    return np.random.default_rng(0).standard_normal(90).astype(np.float32) * 0.1, 1000


@pytest.mark.usefixtures("stopping")
def test_a_seed_uses_numpys_generator_and_unseeded_speech_tells_its_seed(tts):
    speech, unseeded = tts.speak(TEXT, rng=np.random.default_rng(7)), tts.speak(TEXT)
    assert speech.seed is None
    np.testing.assert_array_equal(speech.audio, tts.generate(TEXT, seed=7))
    np.testing.assert_array_equal(unseeded.audio, tts.generate(TEXT, seed=unseeded.seed))


@pytest.mark.usefixtures("network")
def test_overlong_speech_is_retried_with_the_next_seeds(tts):
    with pytest.warns(TooLongWarning, match="segment 1: .*28 patches for 3 tokens.*the best of 3 attempts"):
        long = tts.speak("hi", seed=5)
    assert (long.attempts, long.seed, long.stopped, long.suspicious[0].reason) == (3, 7, False, "long")
    np.testing.assert_array_equal(long.latents, tts.speak("hi", seed=7, retry_badcase=False).latents)


def test_the_first_generation_counts_the_decoders_context_too(tts, prompt_audio, architecture):
    """Upstream's voxcpm returns prompt patches with the generated ones and counts both; voxcpm2 does not."""
    counts_context = architecture.generation == "voxcpm"
    with pytest.warns(TooLongWarning) if counts_context else contextlib.nullcontext():
        speech = tts.speak("hi", prompt_audio, "a ", seed=5, max_len=16)
    assert speech.attempts == (3 if counts_context else 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": " \n\t"}, "the text is empty"),
        ({"text": "a\udcff"}, "not valid Unicode"),
        ({"prompt_wav_path": "x.wav"}, "got the audio without the transcript"),
        ({"prompt_wav_path": "x.wav", "prompt_text": "a"}, "no such file"),
        ({"cfg_value": 11}, "cfg_value must be"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"seed": 1, "rng": np.random.default_rng(1)}, "not both"),
        ({"min_len": 38}, r"positions and the speech at least 40: 94 needed, but the KV cache has 48"),
    ],
)
@pytest.mark.parametrize("call", ["generate", "generate_streaming"])
def test_invalid_input_is_rejected_before_any_work(tts, models, call, arguments, message):
    with pytest.raises(InputError, match=message):
        getattr(tts, call)(**{"text": TEXT} | arguments)
    assert not any(model.calls for model in models.values())


@pytest.mark.usefixtures("stopping")
def test_the_shortest_speech_may_fill_the_cache(tts):
    """4 positions and 44 patches are 48; one more is refused."""
    assert len(tts.speak("hi", seed=1, min_len=42).latents) == 44
    with pytest.raises(InputError, match="at least 45: 49 needed, but the KV cache has 48"):
        tts.speak("hi", seed=1, min_len=43)


@pytest.mark.usefixtures("stopping")
def test_unspoken_characters_are_warned_about(tts, monkeypatch):
    known = "0123456789"  # a vocabulary without digits is one of letters, whose texts are spelled
    monkeypatch.setattr(tts.bundle.tokenizer, "unknown_characters", lambda text: "" if text == known else "☃")
    for call in (tts.generate, lambda text, seed: list(tts.generate_streaming(text, seed=seed))):
        with pytest.warns(VoxCPMWarning, match="no token for '☃'") as caught:
            call(TEXT, seed=1)
        # At the line that called.
        assert {warning.filename for warning in caught} == {__file__}


def test_overlong_prompt_is_rejected_before_encoding(tts, models):
    audio = (np.resize(np.float32([0.5, -0.5]), 20 * 40), 1000)
    with pytest.raises(InputError, match=r"\d+ needed, but the KV cache has 48"):
        tts.generate(TEXT, audio, "a ")
    assert not models["audio_vae_encoder"].calls


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda tts: tts.batch(["a", None]), "utterance 2: it must be a text, or a mapping .*, got None"),
        (lambda tts: tts.batch([Request()]), "utterance 1: the text must be a str, got NoneType"),
        (lambda tts: tts.batch([{"seed": 5}]), "utterance 1: .* with the key 'text' .*, got {'seed': 5}"),
        (lambda tts: tts.generate("hi.", voice=5), "voice must be a Voice, its name, or the path of"),
    ],
)
def test_wrong_argument_type_is_a_one_line_error(tts, call, message):
    with pytest.raises(InputError, match=message):
        call(tts)
