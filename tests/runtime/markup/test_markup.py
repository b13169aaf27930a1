import numpy as np
import pytest

from voxcpm_constants.errors import InputError
from voxcpm_runtime.markup.parsing import spoken_parts

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
PARAGRAPH = 0.6
ROOT = (
    '<?xml version="1.0"?><speak version="1.0" xmlns="http://www.w3.org/2001/10/synthesis" xml:lang="en-US">'
)


def parts(text):
    """What is said, the voice's name, rate and pause of each part."""
    found = spoken_parts(text, PARAGRAPH)
    return [(p.said.strip(), p.voice.name if p.voice else "", round(p.rate, 3), p.pause) for p in found]


def said(kind, text, form=""):
    return parts(f'<say-as interpret-as="{kind}" {form}>{text}</say-as>')[0][0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello there.", [("Hello there.", "", 1, None)]),
        ("R&D, \\[1\\] > {HH AH0}", [("R&D, [1] > {HH AH0}", "", 1, None)]),
        ("[pause 0.5s]a [pause 250ms][pause .25s] b", [("a", "", 1, 0.5), ("b", "", 1, 0.5)]),
        ("a [voice emma]b[/voice], c", [("a", "", 1, None), ("b,", "emma", 1, None), ("c", "", 1, None)]),
        ("a [rate 1.2]b [rate 80%]c[/rate] d",
         [("a", "", 1, None), ("b", "", 1.2, None), ("c", "", 0.8, None), ("d", "", 1, None)]),
        ("[spell]x-1[/spell] it", [("X, dash, 1 it", "", 1, None)]),
        (f"{ROOT}<!-- no -->a &amp; <![CDATA[b < c]]></speak>", [("a & b < c", "", 1, None)]),
        ("<p><s>One</s><s>Two?</s></p><p>three</p> four",
         [("One. Two?", "", 1, None), ("three", "", 1, 0.6), ("four", "", 1, 0.6)]),
        ('a<break/>b<break strength="strong"/>c<break strength="none"/> d<break time="2s" strength="weak"/>e',
         [("a", "", 1, None), ("b", "", 1, 0.75), ("c d", "", 1, 1), ("e", "", 1, 2)]),
        ('<p>a</p><break time="1s"/><p>b</p>', [("a", "", 1, None), ("b", "", 1, 1)]),
        ('the <sub alias="World Wide Web">WWW</sub>.', [("the World Wide Web.", "", 1, None)]),
        ('<prosody rate="slow">a <prosody rate="+20%">b</prosody></prosody> <prosody rate="150%">c</prosody>',
         [("a", "", 0.75, None), ("b", "", 0.9, None), ("c", "", 1.5, None)]),
        ('<voice name="emma">a [voice liam]b <voice name="default">c</voice> d</voice> e',
         [("a", "emma", 1, None),
          ("b", "liam", 1, None), ("c", "", 1, None), ("d", "liam", 1, None), ("e", "", 1, None)]),
    ],
)  # fmt: skip
def test_a_text_in_parts(text, expected):
    assert parts(text) == expected


@pytest.mark.parametrize(
    ("kind", "written", "form", "expected"),
    [
        ("characters", "Ab-9", "", "A, B, dash, 9"),
        ("cardinal", "1999", "", "one thousand nine hundred ninety-nine"),
        ("cardinal", "-3.5", "", "minus three point five"),
        ("ordinal", "21st", "", "twenty-first"),
        ("ordinal", "112", "", "one hundred twelfth"),
        ("date", "5/6/2026", 'format="dmy"', "June fifth, twenty twenty-six"),
        ("date", "5/6/2026", "", "May sixth, twenty twenty-six"),
        ("date", "6.5.26", 'format="mdy"', "June fifth, twenty-six"),
        ("date", "2024-02-29", 'format="ymd"', "February twenty-ninth, twenty twenty-four"),
        ("date", "2024-02-29", "", "February twenty-ninth, twenty twenty-four"),
        ("date", "May 6, 2026", "", "May sixth, twenty twenty-six"),
        ("date", "29 February", "", "the twenty-ninth of February"),
        ("date", "May 2026", "", "May twenty twenty-six"),
        ("telephone", "+1 (555) 010-0123", "", "plus one, five five five, zero one zero, zero one two three"),
    ],
)
def test_say_as(kind, written, form, expected):
    assert said(kind, written, form) == expected


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("one\ntwo [laugh] three", "2, column 5", r"got \[laugh\]; write \\\["),
        ("a [pause 0.5s", "1, column 3", "expected"),
        ("[pause]a", "1, column 1", "expected"),
        ("[spell x]a", "1, column 1", "expected"),
        ("a [pause 3]", "1, column 3", "0.5s or 500ms"),
        ("a [pause 61s]", "1, column 3", "at most 60 s"),
        ("a [rate 5]b", "1, column 3", "from 0.25 to 4"),
        ("a [rate brisk]b", "1, column 3", "x-slow, slow"),
        ("a\r\n  [voice nobody]b", "2, column 3", "no voice nobody"),
        ("[voice ../emma]b", "1, column 1", "voice name"),
        ("so [spell]a", "1, column 4", r"\[spell\] needs \[/spell\]"),
        ("<p>so [spell]a</p>", "1, column 7", r"\[spell\] needs \[/spell\]"),
        ("so a[/spell]", "1, column 5", r"expected \[spell\] before"),
        ("a <emphasis>b</emphasis>", "1, column 3", "got <emphasis>"),
        ("<speak>\n <p>a <audio src='x'/></p></speak>", "2, column 7", "got <audio>"),
        ("<speak><speak>a</speak></speak>", "1, column 8", "got <speak>"),
        ('<prosody rate="1" pitch="high">a</prosody>', "1, column 1", "unknown attribute pitch"),
        ("<voice>a</voice>", "1, column 1", "needs name"),
        ('a <break strength="mild"/>', "1, column 3", "strength: expected one of none"),
        ('<say-as interpret-as="time">2</say-as>', "1, column 1", "interpret-as: expected one of characters"),
        ('<say-as interpret-as="cardinal">two</say-as>', "1, column 1", "read as cardinal, got 'two'"),
        ('<say-as interpret-as="date" format="ym">2/3/4</say-as>', "1, column 1", "format: expected mdy"),
        ("[spell]a[pause 1s][/spell]", "1, column 9", r"text only from .*, got \[pause 1s\]"),
        ("<sub alias='b'>a<break/></sub>", "1, column 17", "text only within"),
        ("a < b", "1, column 4", "&lt; and &amp;"),
        ("a &nbsp; <break/> b", "1, column 3", "undefined entity"),
        ("<speak>a", "1, column 9", "XML needs"),
    ],
)
def test_what_is_not_markup_is_an_error_with_its_place(text, place, message):
    with pytest.raises(InputError, match=rf"^markup, line {place}: .*{message}") as raised:
        parts(text)
    assert raised.value.argument == "text"


@pytest.mark.parametrize(
    ("form", "written"),
    [
        *(("mdy", text) for text in ("13/45/2020", "13/5/2020", "May 6")),
        *(("ymd", text) for text in ("5/6/2020", "2020-02-30")),
        ("dmy", "5/6/20205"),
        *(
            ("", text)
            for text in ("2020-02-30", "0000-00-00", "30th Feb. 2020", "February 29, 2021", "May 0")
        ),
    ],
)
def test_what_is_not_a_date_is_an_error_with_its_place(form, written):
    given = f'format="{form}"' * bool(form)
    with pytest.raises(InputError, match=rf"line 1, column 3: expected a date .*{form}.*{written}"):
        parts(f'a <say-as interpret-as="date" {given}>{written}</say-as>')


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))


@pytest.mark.parametrize(
    "hostile",
    [
        f'<!DOCTYPE speak [<!ENTITY l0 "ha">{LAUGHS}]><speak>&l9;</speak>',
        '<!DOCTYPE speak [<!ENTITY x SYSTEM "file:///etc/passwd">]><speak>&x;</speak>',
        '<?xml version="1.0"?><!DOCTYPE speak SYSTEM "http://127.0.0.1:1/x.dtd"><speak>a</speak>',
    ],
)
def test_hostile_xml_is_refused(hostile):
    with pytest.raises(InputError, match="no document type"):
        parts(hostile)


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
