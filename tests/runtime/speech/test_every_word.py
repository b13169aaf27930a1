"""Speech of the built-in voice that would skip or repeat words: seeds that did so before the text was followed."""

import warnings

import numpy as np
import pytest

from encoding_speaker import spoken
from voxcpm_runtime import CancelToken, VoxCPM
from voxcpm_runtime.speech.results import WordsWarning
from voxcpm_runtime.speech.spine import prepared
from voxcpm_runtime.voices.recordings import encoded
from voxcpm_runtime.words.files import timestamps_file

CUT = ("Snow fell all night. The roads are white.", {"voice": "fenrir", "seed": 1})
"""The stop head ends it after "night."."""
LEFT_OUT = ("It was the last day of the week. Nobody said a word about it.", {"voice": "liam", "seed": 1})
"""It goes on after "the" as after "word"."""

SKIPPED = ("The ship left at dawn. Its sails were red.", {"voice": "fenrir", "seed": 1})
"""The first sentence is left out, which its sixth patch tells."""

RIVER = "The river runs slowly to the sea. She sells fresh bread in the market."


@pytest.fixture(scope="module")
def tts():
    return VoxCPM.from_bundle()


def test_speech_does_not_end_before_the_last_word_in_any_mode(tts):
    text, given = CUT
    before = tts.generate(text, every_word=False, retry_badcase=False, **given)
    speech = tts.speak(text, **given)
    streamed = np.concatenate(list(tts.generate_streaming(text, chunk_patches=1, **given)))
    assert len(before) < 1.6 * tts.sample_rate < 2.2 * tts.sample_rate < len(speech.audio)
    # The same patches, except the last one, whose end may be faded.
    np.testing.assert_array_equal(speech.audio[: len(before) - 4000], before[:-4000])
    np.testing.assert_array_equal(streamed, speech.audio)
    assert (speech.stopped, speech.unsaid, speech.repeated, speech.attempts) == (True, (), (), 1)
    with tts.session(**given) as session:
        told = [chunk.spoken for chunk in spoken(session, text) if chunk.spoken]
    assert [word.said for segment in told for word in segment.words] == [1] * 8


def test_a_stream_that_says_its_last_clause_again_ends_before_it(tts):
    text, given = "The bread is fresh. The butter is soft. Help yourself.", {"voice": "heart", "seed": 1}
    said = []
    streamed = np.concatenate(list(tts.generate_streaming(text, on_words=said.extend, **given)))
    before = tts.generate(text, every_word=False, retry_badcase=False, **given)
    assert len(streamed) < 3.8 * tts.sample_rate < 4.6 * tts.sample_rate < len(before)
    assert [word.said for word in said] == [1] * 10
    np.testing.assert_array_equal(tts.generate(text, **given), streamed)
    # A minimum length is kept, though it makes the model go on.
    with pytest.warns(WordsWarning, match="said again"):
        longer = tts.speak(text, min_len=26, retry_badcase=False, **given)
    assert len(longer.latents) >= 28


def test_samples_are_the_same_where_nothing_is_skipped_or_repeated(tts):
    for seed in range(4):
        followed, not_followed = (
            tts.generate(RIVER, voice="emma", seed=seed, every_word=option) for option in (True, False)
        )
        np.testing.assert_array_equal(followed, not_followed)


def test_words_left_out_are_said_with_the_same_samples_each_time(tts):
    text, given = LEFT_OUT
    first, second = (tts.speak(text, retry_badcase=False, **given) for _ in range(2))
    before = tts.speak(text, retry_badcase=False, every_word=False, **given)
    assert (first.unsaid, first.repeated, first.attempts) == ((), (), 1)
    np.testing.assert_array_equal(first.audio, second.audio)
    # The patches before the repair are the same.
    np.testing.assert_array_equal(first.latents[:3], before.latents[:3])
    assert len(first.latents) > len(before.latents) + 4
    # Its samples do not depend on where the repair began: they are those of its patches.
    plan = tts.plan(text, **given)
    sequence = prepared(plan, 0, plan.segments[0], encoded(plan.voice, tts.driver)).sequence
    decoded = np.concatenate([*map(tts.driver.patch_decoder(sequence), first.latents)])
    np.testing.assert_array_equal(first.audio[:-4000], decoded[:-4000])


@pytest.mark.filterwarnings("ignore:.*suspiciously")
def test_what_a_stream_cannot_repair_is_reported(tts):
    text, given = LEFT_OUT
    words = []
    with pytest.warns(WordsWarning, match=r"^segment 1: 'week.' at 27 is not said, 'Nobody' at 33") as caught:
        streamed = np.concatenate(list(tts.generate_streaming(text, on_words=words.extend, **given)))
    before = tts.generate(text, every_word=False, retry_badcase=False, **given)
    np.testing.assert_array_equal(streamed, before)
    unsaid = [word for word in words if not word.said]
    said = [text[word.place :][: len(word.text)] for word in unsaid]
    assert said == ["week.", "Nobody", "said", "a", "word"]
    (reported,) = (w.message.words for w in caught if isinstance(w.message, WordsWarning))
    assert list(reported) == unsaid


def test_first_patches_of_a_stream_are_handed_out_at_once_and_later_ones_held_back(tts):
    generated = []
    given = {"voice": "emma", "seed": 1, "segment_tokens": 40, "progress": generated.append}
    arrived = [generated[-1] for _ in tts.generate_streaming(RIVER, chunk_patches=1, **given)]
    first, later = ([p.patches for p in arrived if p.segment == segment] for segment in (0, 1))
    # Every second one is held back after the sixth, and those of later segments from their beginning.
    assert first[:9] == [1, 2, 3, 4, 5, 6, 8, 10, 12]
    assert later[:2] == [6, 7]


@pytest.mark.filterwarnings("ignore:.*suspiciously")
def test_the_first_chunk_of_a_stream_is_repaired_before_it_is_handed_out(tts):
    text, given = SKIPPED
    words = []
    with pytest.warns(WordsWarning, match="'ship' at 4 is not said"):
        list(tts.generate_streaming(text, first_chunk_patches=5, **given))
    list(tts.generate_streaming(text, on_words=words.extend, **given))
    assert [word.said for word in words] == [1] * 9


def test_speech_that_lacks_words_is_retried_or_reported_and_has_no_captions_for_them(tts, monkeypatch):
    text, given = CUT
    # Believe the stop head at once.
    monkeypatch.setattr("voxcpm_runtime.words.coverage._PATIENCE", -100)
    speech = tts.speak(text, **given)
    assert (speech.attempts, speech.unsaid) == (2, ())
    np.testing.assert_array_equal(speech.audio, tts.generate(text, voice="fenrir", seed=2))
    with pytest.warns(WordsWarning, match="'The' at 21 is not said"):
        speech = tts.speak(text, retry_badcase=False, **given)
    unsaid = [(word.text, word.place) for word in speech.unsaid]
    assert unsaid == [("The", 21), ("roads", 25), ("are", 31), ("white.", 35)]
    assert "roads" not in timestamps_file(speech.words, ".srt").decode()
    assert '"unsaid"' in timestamps_file(speech.words, ".json").decode()


def test_places_are_those_in_the_whole_text(tts):
    text = "  The river runs.\n\nThe sea is far. The river runs."
    speech = tts.speak(text, voice="emma", seed=1, segment_tokens=20)
    assert len(speech.segments) > 1
    assert [text[word.place :][: len(word.text)] for word in speech.words] == text.split()
    assert [word.place for word in speech.words] == sorted({word.place for word in speech.words})


@pytest.mark.parametrize("every_word", [True, False])
def test_words_that_a_limit_or_a_cancellation_leaves_out_have_no_times(tts, every_word):
    text = "One two three four five six seven eight nine ten eleven twelve."
    given = {"seed": 3, "every_word": every_word}
    token = CancelToken()

    def cancel(progress):
        if progress.patches == 10:
            token.cancel()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WordsWarning)
        limited = tts.speak(text, max_len=10, **given)
    cancelled = tts.speak(text, progress=cancel, cancel=token, keep_partial=True, **given)
    for speech in (limited, cancelled):
        said = [word for word in speech.words if word.said]
        assert [word.text for word in said[:4]] == ["One", "two", "three", "four"]
        assert len(said) < 8
        assert said[-1].end <= speech.audio_seconds
        # Without attention, it is not known of the others whether they are said.
        assert every_word or said == list(speech.words)
        assert bool(speech.segments[0].said_counts) == every_word
