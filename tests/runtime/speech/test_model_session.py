"""`VoxCPM.session`: incremental text gives the same speech as the library's other calls."""

import errno
import threading

import numpy as np
import pytest

from encoding_speaker import as_tuple, spoken
from voxcpm_constants.errors import InputError, system_reason
from voxcpm_runtime.audio.pcm import pcm16
from voxcpm_runtime.speech.request import Cancelled, CancelToken
from waiting import until

TEXT = "hello you. so it is. who is it? a sentence that is a good deal longer than the others are, to be cut."


@pytest.mark.usefixtures("stopping")
def test_session_equals_streaming_its_sentences(tts):
    """Fragments make no difference; each sentence is a segment, and the first one is the voice of the others."""
    heard = []
    for size in (1, 7, 1000):
        with tts.session(seed=3) as session:
            chunks = spoken(session, *(TEXT[at : at + size] for at in range(0, len(TEXT), size)))
            assert session.finished
        heard.append([as_tuple(chunk) for chunk in chunks])
    assert heard[0] == heard[1] == heard[2]
    first = pcm16(tts.speak("hello you.", seed=3).audio)
    np.testing.assert_array_equal(np.concatenate([c.pcm for c in chunks if c.sentence == 0]), first)
    sentences = [c.sentence for c in chunks]
    assert sentences == sorted(sentences)
    assert {*sentences} == {0, 1, 2, 3}


@pytest.mark.usefixtures("stopping")
def test_session_has_its_own_voice_options_and_seed(tts, prompt_audio):
    voice = tts.create_voice(prompt_audio, "so ", name="ada")

    def said(**given):
        with tts.session(**given) as session:
            chunks = spoken(session, "hello there.")
        return np.concatenate([chunk.pcm for chunk in chunks]), {chunk.state_id for chunk in chunks}

    plain, ids = said(seed=3)
    for given in ({"seed": 4}, {"seed": 3, "voice": voice}, {"seed": 3, "cfg_value": 1.1}):
        other, other_ids = said(**given)
        assert other.tobytes() != plain.tobytes()
        assert not ids & other_ids
    with_voice = pcm16(tts.generate("hello there.", voice=voice, seed=3))
    np.testing.assert_array_equal(said(seed=3, voice=voice)[0], with_voice)
    with pytest.raises(InputError, match="cfg_value must be"):
        tts.session(cfg_value=99)


def test_callers_token_cancels_a_session(tts):
    token = CancelToken()
    with tts.session(seed=3, cancel=token) as session:
        session.push_text("hello there. so it is. who is it? ")
        assert session.next_audio_chunk(timeout=10) is not None
        token.cancel()
        with pytest.raises(Cancelled):
            for _ in session:
                pass


@pytest.mark.usefixtures("stopping")
def test_idle_sessions_hold_no_thread_and_resume(tts):
    """The first sentence's voice, paragraph pauses and seeds continue in the next thread."""
    before = set(threading.enumerate())
    rest = " are.\n\nso it is. who is it? no."
    with tts.session(seed=3) as session:
        at_once = [as_tuple(chunk) for chunk in spoken(session, "hello you. how you" + rest)]
    opened = [tts.session(seed=3) for _ in range(20)]
    for session in opened:
        session.push_text("hello you. how you")
    for session in opened:
        until(lambda session=session: session.buffered_seconds > 0)
    until(lambda: set(threading.enumerate()) <= before)
    for session in opened[::10]:
        heard = []
        for text in (rest[:5], rest[5:16]):
            session.push_text(text)
            while (chunk := session.next_audio_chunk(0.2)) is not None:
                heard.append(chunk)
        assert [as_tuple(chunk) for chunk in heard + spoken(session, rest[16:])] == at_once
    for session in opened:
        session.close()
    assert set(threading.enumerate()) == before


def said_in_a_session(tts):
    with tts.session(seed=3) as session:
        return spoken(session, "hi.")


@pytest.mark.parametrize(
    "call", [lambda tts: tts.speak("hi."), lambda tts: list(tts.generate_streaming("hi.")), said_in_a_session]
)
def test_system_errors_while_speaking_are_one_line_input_errors(tts, models, call):
    no_memory = OSError(errno.ENOMEM, "Cannot allocate")
    for model, error in (("audio_vae_decoder", no_memory), ("base_lm_step", MemoryError())):

        def refused(*_, error=error):
            raise error

        models[model].function = refused
        with pytest.raises(InputError) as raised:
            call(tts)
        assert str(raised.value) == system_reason(error)
        assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", [MemoryError("mine"), BrokenPipeError("mine")])
def test_callers_exceptions_propagate(tts, error):
    def refused(_):
        raise error

    with pytest.raises(type(error), match="mine"):
        tts.generate("hi.", seed=3, progress=refused)
