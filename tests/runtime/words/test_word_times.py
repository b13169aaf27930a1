import itertools

import numpy as np
import pytest

from voxcpm_runtime import VoxCPM
from voxcpm_runtime.words.pauses import letter_times
from voxcpm_runtime.words.words import Word, character_times, word_times
from voxcpm_runtime.words.written import said_spans

TEXT = 'I paid $4.20 for it.\n\nDr. Smith said: "No!" 😀'
WORDS = ["I", "paid", "$4.20", "for", "it.", "Dr.", "Smith", "said:", '"No!" 😀']


@pytest.fixture(scope="module")
def tts():
    with VoxCPM.from_bundle() as opened:
        yield opened


@pytest.mark.parametrize(
    ("text", "said", "expected"),
    [
        ("It costs $4.20!", "it costs four dollars and twenty cents!", "it|costs|four dollars and twenty cents!"),
        ("May 5, 2021, it", "may fifth, twenty twenty-one, it.", "may|fifth,|twenty twenty-one,|it."),
        ("$12.5 million", "twelve point five million dollars.", "twelve point five|million dollars."),
        ("The FBI — 3 kg", "the eff bee eye, three kilograms.", "the|eff bee eye,|three|kilograms."),
        ("“你好，”2021年", "你好，二零二一年", "你|好，|二零二一|年"),
        ("🙂 Hello 🙂", "hello.", "hello."),
        ("so-called words", "so-called words", "so-called|words"),
    ],
)  # fmt: skip
def test_a_written_word_has_what_it_is_read_as(text, said, expected):
    spans = said_spans(text, said)
    assert "|".join(said[span.start : span.end] for span in spans) == expected
    assert "".join(span.text for span in spans).replace(" ", "") == text.replace(" ", "")


def spliced(tts, *phrases, pauses, shortened=1.0):
    """Words cut from recordings of their own, all but a phrase's last one shortened, and their starts and ends."""
    clips, times = [np.zeros(2400, np.float32)], []
    for phrase, pause in zip(phrases, pauses, strict=True):
        for word in phrase.split():
            audio = tts.generate(f"{word}.", voice="heart", seed=3)
            loud = np.flatnonzero(np.abs(audio) > 0.02 * np.abs(audio).max())
            clip = audio[loud[0] : loud[-1]]
            start = sum(map(len, clips))
            clips.append(clip if word == phrase.split()[-1] else clip[: round(shortened * len(clip))])
            times.append((start / 24000, (start + len(clips[-1])) / 24000))
        clips.append(np.zeros(int(pause * 24000), np.float32))
    return np.concatenate(clips), *zip(*times, strict=True)


def test_words_spliced_at_known_times_are_found_there(tts):
    audio, starts, ends = spliced(tts, "monday", "water", "seventeen", "no", pauses=(0.3, 0.15, 0.5, 0.4))
    said = "monday, water, seventeen. no."
    words = word_times(said, said, letter_times(said, audio, 24000))
    assert [word.text for word in words] == ["monday,", "water,", "seventeen.", "no."]
    assert [word.start for word in words] == pytest.approx(starts, abs=0.05)
    assert [word.end for word in words] == pytest.approx(ends, abs=0.15)


def test_words_without_a_pause_between_are_found_by_their_letters(tts):
    phrases = "seven yellow flowers", "near the river"
    audio, starts, _ = spliced(tts, *phrases, pauses=(0.3, 0.3), shortened=0.7)
    said = "seven yellow flowers, near the river."
    words = word_times(said, said, letter_times(said, audio, 24000))
    assert np.median(np.abs(np.subtract([word.start for word in words], starts))) < 0.06


def test_the_last_word_before_a_pause_takes_longer():
    """Two equal words in two seconds of sound: the first one ends well before the middle."""
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 48_000).astype(np.float32)
    first, second = word_times("man man.", "man man.", letter_times("man man.", noise, 24_000))
    assert (first.start, second.end) == pytest.approx((0, 2), abs=0.02)
    assert 0.6 < second.start < 0.85


@pytest.mark.parametrize(
    "audio",
    [np.zeros(0, np.float32), np.zeros(24000, np.float32), np.full(24000, 0.5, np.float32)],
    ids=["no samples", "silence", "no pause"],
)
@pytest.mark.parametrize("said", ["a", "one, two. three", "...", "你好，世界。"])
def test_times_never_go_back_or_beyond_the_speech(audio, said):
    times = letter_times(said, audio, 24000)
    assert len(times) == len(said) + 1
    assert (np.diff(times) >= 0).all()
    assert 0 <= times[0] <= times[-1] <= len(audio) / 24000


def test_times_are_those_of_the_whole_speech_and_the_same_in_a_stream(tts):
    speech = tts.speak(TEXT, voice="emma", seed=1, segment_tokens=60)
    events = []
    chunks = tts.generate_streaming(
        TEXT, voice="emma", seed=1, segment_tokens=60, chunk_patches=1, on_words=events.append
    )
    events.extend(map(len, chunks))
    assert len(speech.segments) > 1
    assert [word.text for word in speech.words] == WORDS
    assert all(a.start <= a.end <= b.start for a, b in itertools.pairwise(speech.words))
    second = len(speech.segments[0].audio) / 24000 + 0.6
    assert speech.words[5].start == pytest.approx(second, abs=0.5)
    assert speech.words[-1].end <= speech.audio_seconds
    assert tuple(word for words in events if isinstance(words, tuple) for word in words) == speech.words
    heard = [
        sum(n for n in events[:at] if isinstance(n, int))
        for at, e in enumerate(events)
        if isinstance(e, tuple)
    ]
    ends = [segment.start * 24000 + len(segment.audio) for segment in speech.segments]
    # With the last patch of a segment, not later.
    assert all(samples < end for samples, end in zip(heard, ends, strict=True))


def test_the_last_chunk_of_a_sentence_in_a_session_has_its_words(tts):
    with tts.session(voice="emma", seed=1) as session:
        session.push_text("It costs $5. How are you?")
        session.flush()
        chunks = list(session)
    said = [chunk for chunk in chunks if chunk.words]
    words = [[word.text for word in chunk.words] for chunk in said]
    assert words == [["It", "costs", "$5."], ["How", "are", "you?"]]
    for chunk in said:
        assert chunk.words[-1].end <= (chunk.offset + len(chunk.pcm)) / 24000


def test_characters_share_the_time_of_their_word():
    words = [Word("Hi", 1.0, 2.0, "pauses"), Word("you.", 2.5, 4.5, "pauses")]
    assert character_times("Hi you.", words) == [
        (1.0, 1.5), (1.5, 2.0), (2.0, 2.5), (2.5, 3.0), (3.0, 3.5), (3.5, 4.0), (4.0, 4.5),
    ]  # fmt: skip


def test_marks_without_a_space_end_a_word():
    text = "5。Hello，「5：30。」Bye a.b，1"
    found = [span.text for span in said_spans(text, text)]
    assert found == ["5。", "Hello，", "「5：30。」", "Bye", "a.b，1"]
