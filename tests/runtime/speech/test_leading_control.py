"""VoxCPM2: a text that begins with a description in parentheses, which is upstream's own form of voice design."""

import numpy as np
import pytest

from encoding_speaker import spoken
from voxcpm_constants.errors import InputError

CONTROL = "low. b."
TEXT = "hi me. is it. no it is. hi me."

pytestmark = [
    pytest.mark.usefixtures("stopping"),
    pytest.mark.parametrize("architecture", ["voxcpm2"], indirect=True),
]


@pytest.mark.parametrize("bracketed", ["({}){}", "({}) {}", " （{}）{}"])
def test_leading_bracket_is_the_control(tts, bracketed):
    plan = tts.plan(bracketed.format(CONTROL, "hi me."), seed=5)
    assert [segment.text for segment in plan.segments] == ["hi me."]
    assert plan.segments[0].tokens == tts.plan("hi me.", control=CONTROL, seed=5).segments[0].tokens


def test_every_segment_in_a_reference_voice_has_the_whole_control(tts, prompt_audio):
    options = {"reference_wav_path": prompt_audio, "segment_tokens": 8, "seed": 5}
    bracketed = tts.speak(f"({CONTROL}){TEXT}", **options)
    by_keyword = tts.speak(TEXT, control=CONTROL, **options)
    assert len(bracketed.segments) > 1
    assert [segment.text for segment in bracketed.segments] == [s.text for s in by_keyword.segments]
    assert np.array_equal(bracketed.audio, by_keyword.audio)
    streamed = np.concatenate(list(tts.generate_streaming(f"({CONTROL}){TEXT}", **options)))
    assert np.array_equal(streamed, bracketed.audio)
    # Places are those of the text as given.
    assert bracketed.segments[0].place == len(CONTROL) + 2


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_session_speaks_the_bracket_as_control(tts, size):
    text = f"({CONTROL}) hi me. is it."
    with tts.session(seed=5) as session, tts.session(seed=5, control=CONTROL) as controlled:
        chunks = spoken(session, *(text[at : at + size] for at in range(0, len(text), size)))
        expected = spoken(controlled, "hi me. is it.")
    assert {chunk.sentence for chunk in chunks} == {0, 1}
    assert b"".join(c.pcm.tobytes() for c in chunks) == b"".join(c.pcm.tobytes() for c in expected)


def test_session_without_a_bracket_or_with_an_unclosed_one_speaks_its_text(tts):
    for text in ("hello. you.", "(hello. you."):
        with tts.session(seed=5) as session:
            assert "".join(dict.fromkeys(chunk.text for chunk in spoken(session, text))) == text


def test_bracket_adds_to_the_control_and_is_refused_alone_or_with_a_prompt(tts, prompt_audio):
    plan = tts.plan("(slow) hello.", control="warm")
    assert plan.description == "warm, slow"
    with pytest.raises(InputError, match="expected text after the control"):
        tts.plan("(warm, slow) ")
    with tts.session() as session, pytest.raises(InputError, match="expected text after the control"):
        spoken(session, "(warm.) ")
    for text, control in (("(warm) hello.", None), ("hello.", "warm")):
        with pytest.raises(InputError, match="together with a prompt"):
            tts.plan(text, prompt_audio, "hi.", control=control)
    with tts.session(prompt_audio, "hi.") as session, pytest.raises(InputError, match="with a prompt"):
        spoken(session, "(warm) hello.")
