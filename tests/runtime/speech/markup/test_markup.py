"""Markup: which parts a text has, what is refused and where, and how a call speaks the parts.

The tables are those of the Swift package's tests, too.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from voxcpm_constants.errors import InputError
from voxcpm_runtime.speech.markup.parsing import spoken_parts

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
PARAGRAPH = 0.6
TABLES = json.loads((Path(__file__).parents[3] / "marked_up_texts.json").read_text(encoding="utf-8"))


def parts(text):
    """What is said, the voice's name, rate and pause of each part."""
    found = spoken_parts(text, PARAGRAPH)
    return [(p.said.strip(), p.voice.name if p.voice else "", round(p.rate, 3), p.pause) for p in found]


def said(kind, text, form=""):
    return parts(f'<say-as interpret-as="{kind}" {form}>{text}</say-as>')[0][0]


@pytest.mark.parametrize(("text", "expected"), TABLES["parts"])
def test_a_text_in_parts(text, expected):
    assert [[*part] for part in parts(text)] == expected


@pytest.mark.parametrize(("kind", "written", "form", "expected"), TABLES["say_as"])
def test_say_as(kind, written, form, expected):
    assert said(kind, written, form) == expected


@pytest.mark.parametrize(("text", "message"), TABLES["errors"])
def test_what_is_not_markup_is_an_error_with_its_place(text, message):
    """Also dates that do not exist, and hostile XML."""
    with pytest.raises(InputError) as raised:
        parts(text)
    assert str(raised.value).partition(" (available")[0] == message
    assert raised.value.argument == "text"


def test_deep_and_long_markup_takes_no_recursion_and_no_square_of_time():
    assert parts("<s>" * 50_000 + "a" + "</s>" * 50_000)[0][0].startswith("a.")
    assert len(parts("a <break/> " * 20_000)) == 20_000
    (one,) = spoken_parts('<sub alias="b">a</sub> c ' * 20_000, PARAGRAPH)
    assert len(one.pieces) == 40_000
    with pytest.raises(InputError, match="the markup contains no text"):
        parts("<break/> [pause 1s] ...")


GIVEN = {"seed": 3, "retry_badcase": False, "max_len": 40}


@pytest.mark.usefixtures("stopping")
def test_a_text_without_tags_is_spoken_as_without_markup(tts):
    text = "it is so. {hh ah} who is it?\n\ngood day."
    for given in ({}, {"segment_tokens": 12}):
        plain, marked = (tts.speak(text, markup=markup, **given, **GIVEN) for markup in (False, True))
        assert [s.text.strip() for s in marked.segments] == [s.text.strip() for s in plain.segments]
        np.testing.assert_array_equal(marked.audio, plain.audio)


@pytest.mark.usefixtures("stopping")
def test_parts_have_their_pauses_rates_and_voices_in_streams_too(tts, architecture, prompt_audio):
    rate = tts.sample_rate
    ada = tts.create_voice(prompt_audio, "so", name="ada")
    text = "[pause 0.2s]one[pause 0.1234s]<voice name='ada'>two</voice> "
    text += "<prosody rate='2'>3 <sub alias='x y'>z</sub></prosody>[pause 1s]"
    given = {**GIVEN, "markup": True, "find_voice": {"ada": ada}.get}
    speech = tts.speak(text, **given)
    assert [segment.text.strip() for segment in speech.segments] == ["one", "two", "3 z"]
    one, two, three = (segment.audio for segment in speech.segments)
    patch = architecture.patch_output_samples
    assert [len(one), len(two), len(three)] == [4 * patch, 4 * patch, 2 * patch]
    silent = [np.zeros(round(seconds * rate), np.float32) for seconds in (0.2, 0.1234, 1)]
    np.testing.assert_array_equal(
        speech.audio, np.concatenate([silent[0], one, silent[1], two, three, silent[2]])
    )
    streamed = np.concatenate(list(tts.generate_streaming(text, chunk_patches=1, **given)))
    np.testing.assert_array_equal(streamed, speech.audio)
    planned = tts.plan(text, **given).segments
    assert planned[1].transcript_tokens == tts.bundle.tokenizer("so")
    # The voice of the first part goes on after the named one.
    assert [segment.anchors for segment in planned] == [True, False, False] or planned[2].transcript_tokens
    slow = tts.speak(text, speed=0.5, **given)
    assert len(slow.segments[2].audio) == 4 * patch
    with pytest.raises(InputError, match=r"line 1, column 61: .* a rate of 2 times the call's speed of 3"):
        tts.plan(text, speed=3, **given)


def test_long_pauses_are_counted_and_streamed_in_pieces(tts, architecture):
    text, told = "[pause 60s][pause 60s]one[pause 60s]two[pause 60s]", []
    given = {**GIVEN, "markup": True, "progress": told.append}
    chunks = list(tts.generate_streaming(text, **given))
    assert max(map(len, chunks)) <= 5 * architecture.patch_output_samples + tts.sample_rate
    spoken = len(np.concatenate(chunks)) - 240 * tts.sample_rate
    assert 0 < spoken == sum(p.patches > 0 for p in told) * architecture.patch_output_samples
    assert told[-1].audio_seconds == pytest.approx(240 + spoken / tts.sample_rate)
    assert told[59].audio_seconds == pytest.approx(60)
    np.testing.assert_array_equal(tts.speak(text, **given).audio, np.concatenate(chunks))


def test_the_lexicon_leaves_what_markup_says_to_it_and_a_named_voice_has_its_own(tts, prompt_audio):
    planned = tts.plan("[spell]ab[/spell] ab", markup=True, lexicon={"ab": "x"}).segments
    assert planned[0].text == "ab ab"
    assert planned[0].tokens == tts.plan("A, B x").segments[0].tokens
    ada = tts.create_voice(prompt_audio, "so", name="ada", lexicon={"ab": "x y"})
    planned = tts.plan("ab [voice ada]ab[/voice]", markup=True, find_voice={"ada": ada}.get).segments
    assert ["x y" in segment.said for segment in planned] == [False, True]
    with pytest.raises(InputError, match="markup needs a whole text"):
        tts.session(markup=True)
