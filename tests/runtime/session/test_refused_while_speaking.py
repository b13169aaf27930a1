"""What the system refuses while something is spoken, such as memory, is an InputError of one line in every call."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from voxcpm_constants.errors import InputError, system_reason


def said_in_a_session(tts):
    with tts.session(seed=3) as session:
        session.push_text("hi.")
        session.flush()
        return list(session)


CALLS = {
    "generate": lambda tts: tts.generate("hi.", seed=3),
    "speak": lambda tts: tts.speak("hi. so it is. no.", seed=3, segment_tokens=8),
    "batch": lambda tts: tts.batch([{"text": "hi.", "seed": 3}]),
    "streaming": lambda tts: list(tts.generate_streaming("hi.", seed=3)),
    "session": said_in_a_session,
    "continuous batch": lambda tts: tts.continuous_batch().speak_plan(tts.plan("hi.", seed=3)),
}


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError("too deep"), OSError(errno.ENOMEM, "Cannot allocate")]
)
@pytest.mark.parametrize("model", ["base_lm_step", "locdit_step", "audio_vae_decoder"])
@pytest.mark.parametrize("call", CALLS)
def test_what_the_system_refuses_while_speaking_is_an_input_error_of_one_line(
    tts, models, error, model, call
):
    def refused(*_):
        raise error

    models[model].function = refused

    with pytest.raises(InputError) as raised:
        CALLS[call](tts)

    assert str(raised.value) == system_reason(error)
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("call", ["generate", "speak", "batch"])
def test_speech_that_is_too_long_for_the_memory_is_one_line(tts, monkeypatch, call):
    def refused(*_):
        raise MemoryError

    monkeypatch.setattr("voxcpm_runtime.speech.gathered.np.concatenate", refused)

    with pytest.raises(InputError, match=r"^the memory is not enough$"):
        CALLS[call](tts)


def test_a_recording_that_the_memory_has_no_room_for_is_one_line(tts, models):
    def refused(*_):
        raise MemoryError

    models["audio_vae_encoder"].function = refused
    recording = np.random.default_rng(0).standard_normal(45).astype(np.float32) * 0.1, 1000

    for call in (tts.generate, lambda *given: tts.session(*given[1:])):
        with pytest.raises(InputError, match=r"^the memory is not enough$"):
            call("hi.", recording, "so. ")


@pytest.mark.parametrize("error", [MemoryError("mine"), BrokenPipeError("mine")])
def test_an_error_of_what_the_caller_gives_is_the_callers(tts, error):
    def refused(_):
        raise error

    with pytest.raises(type(error), match="mine"):
        tts.generate("hi.", seed=3, progress=refused)
