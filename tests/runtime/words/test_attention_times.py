from dataclasses import replace

import numpy as np
import pytest

from voxcpm_runtime import VoxCPM
from voxcpm_runtime.text.tokenizer import TextTokenizer
from voxcpm_runtime.words.attention import letter_times

RATE, PATCH = 16000, 0.16


def _sound(*spans, seconds):
    """Noise in these spans, in seconds, and silence elsewhere."""
    audio = np.zeros(int(seconds * RATE), np.float32)
    for start, stop in spans:
        loud = slice(int(start * RATE), int(stop * RATE))
        audio[loud] = np.random.default_rng(0).normal(0, 0.1, loud.stop - loud.start)
    return audio


def _looks_at(positions, tokens):
    """Attention (patches, tokens) shared by the two tokens around each position."""
    return np.maximum(0, 1 - np.abs(np.arange(tokens) - positions[:, None]))


@pytest.mark.parametrize("shift", [0.0, -0.1])
def test_letters_are_said_when_the_head_reaches_them(shift):
    """Two letters a patch. A patch is fed when it ends, and a shift says how much later its letter is said."""
    said, patches = "abcdefghijklmnopqrst", 10
    rows = _looks_at(2.0 * np.arange(1, patches), 20)[:, None]
    audio = _sound((0.0, patches * PATCH), seconds=patches * PATCH)
    times = letter_times(said, range(20), rows, [shift], PATCH, audio, RATE)
    assert times[3:18] == pytest.approx((np.arange(20) / 2 * PATCH + shift)[3:18], abs=1e-3)
    assert times[-1] == pytest.approx(patches * PATCH, abs=0.02)
    assert (np.diff(times) >= 0).all()


def test_a_word_after_a_pause_begins_where_the_pause_ends():
    """The head is already at the next word in the pause; a letter of the text's beginning may have no row."""
    said = "abc, def"
    audio = _sound((0.0, 0.5), (1.0, 1.5), seconds=1.5)
    rows = _looks_at(np.array([1.0, 2.0, 2.5, 3.5, 4.8, 5.0, 5.5, 6.0, 7.0]), 8)[:, np.newaxis, 1:]
    times = letter_times(said, range(8), rows, [0.0], PATCH, audio, RATE)
    assert times[said.index("d")] == pytest.approx(1.0, abs=0.02)
    assert times[said.index(",")] == pytest.approx(0.5, abs=0.02)
    assert times[said.index("c")] < 0.5


def test_the_built_in_voice_has_times_from_attention():
    with VoxCPM.from_bundle() as tts:
        speech = tts.speak("In 1999, it cost $4.20.\nNo more.", voice="heart", seed=1)
        (first,) = speech.segments
    assert [word.text for word in speech.words] == ["In", "1999,", "it", "cost", "$4.20.", "No", "more."]
    assert {word.method for word in speech.words} == {"attention"}
    by_pauses = replace(first, letter_times=()).words
    assert {word.method for word in by_pauses} == {"pauses"}
    assert [w.start for w in first.words] == pytest.approx([w.start for w in by_pauses], abs=0.3)
    assert [w.start for w in speech.words] == sorted(w.start for w in speech.words)


def test_every_form_of_a_bundle_gives_the_same_attention(tiny_bundle, tiny_parts_bundle, tiny_bundle_15):
    """One function or one for each length, one package or two, caches whole or by rows; and one without."""

    without, in_parts, by_length = (
        VoxCPM.from_bundle(bundle, "fp16").speak("the you and the world", seed=1, min_len=6, max_len=6)
        for bundle in (tiny_bundle, tiny_parts_bundle, tiny_bundle_15)
    )
    assert {word.method for word in without.words} == {"pauses"}
    assert {word.method for word in in_parts.words} == {"attention"}
    assert in_parts.segments[0].letter_times == pytest.approx(by_length.segments[0].letter_times, abs=0.02)


def test_tokens_have_places_in_the_text(shared_data):
    tokenizer, text = TextTokenizer.from_folder(shared_data / "tokenizer"), "Hello, the world. 你好世界"
    ids, places = zip(*tokenizer.placed(text), strict=True)
    assert list(ids) == tokenizer(text)
    assert list(places) == sorted(places)
    assert {text[place] for place in places} >= set("Htw你好世界")
