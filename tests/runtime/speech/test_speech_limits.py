"""`max_len` limits a whole call across segments, with the same samples from every method."""

import numpy as np
import pytest

from encoding_speaker import spoken
from voxcpm_runtime.speech.results import UnspokenWarning
from voxcpm_runtime.speech.saved_segments import SavedSegments

pytestmark = pytest.mark.filterwarnings("ignore")
TEXT = "it is so. it is not. who is it? come in! why not.\n\ngood day. so be it."
GIVEN = {"seed": 3, "segment_tokens": 12, "retry_badcase_ratio_threshold": 0.7}
"""Speech of 0.7 patches a token or more is too long, so that some segments take several attempts."""


@pytest.fixture(autouse=True)
def _lengths(stop_after):
    """The stop head ends each attempt after 4 to 12 patches, by its first patch alone."""
    stop_after(lambda first: 4 + int(np.abs(first.latents).sum() * 1000) % 9)


@pytest.mark.parametrize("retry", [False, True])
def test_call_is_limited_in_total_patches(tts, retry):
    given = GIVEN | {"retry_badcase": retry}
    whole = tts.speak(TEXT, **given)
    # Up to the segment that is cut off, whose attempts may be judged otherwise, and of which nothing follows.
    ends = np.cumsum([len(segment.latents) for segment in whole.segments])
    for most in range(4, len(whole.latents) + 4, 18):
        speech = tts.speak(TEXT, max_len=most, **given)
        assert len(speech.latents) <= most
        equal = max((end for end in ends if end <= most - 12), default=0) if retry else min(most, ends[-1])
        np.testing.assert_array_equal(speech.latents[:equal], whole.latents[:equal])
        if not retry:
            assert len(speech.latents) == equal
        assert speech.stopped == (len(speech.segments) == len(whole.segments) and all(
            segment.stopped for segment in speech.segments))  # fmt: skip


def test_a_stream_has_the_samples_of_the_whole_speech_at_any_limit_and_speed(tts):
    given = GIVEN | {"retry_badcase": False}
    for most in (4, 25, 39):
        whole = tts.generate(TEXT, max_len=most, **given)
        for patches in (1, 5):
            chunks = list(tts.generate_streaming(TEXT, max_len=most, chunk_patches=patches, **given))
            np.testing.assert_array_equal(np.concatenate(chunks), whole)
    for speed in (0.3, 1.6, 4.0):
        whole = tts.generate(TEXT, speed=speed, **given)
        chunks = list(tts.generate_streaming(TEXT, speed=speed, chunk_patches=1, **given))
        assert all(map(len, chunks))
        np.testing.assert_array_equal(np.concatenate(chunks), whole)
        with tts.session(**given, speed=speed) as session:
            chunks = spoken(session, TEXT)
        assert [chunk.offset for chunk in chunks] == [0, *np.cumsum([len(c.pcm) for c in chunks])[:-1]]


@pytest.mark.parametrize("most", [21, 30])
def test_an_interrupted_speech_ends_where_an_uninterrupted_one_does(tts, tmp_path, most):
    given = GIVEN | {"max_len": most}
    whole = tts.speak(TEXT, **given)

    class Interrupted(Exception):
        pass

    def interrupted(progress):
        if progress.segment == min(2, len(whole.segments) - 1):
            raise Interrupted

    def saved():
        return SavedSegments(tmp_path / "a.wav", "d", 3, drawn=False)

    with pytest.raises(Interrupted):
        tts.speak(TEXT, saved_segments=saved(), progress=interrupted, **given)
    for _ in range(2):
        speech = tts.speak(TEXT, saved_segments=saved(), **given)
        np.testing.assert_array_equal(speech.audio, whole.audio)


def test_unspoken_text_is_reported(tts):
    for call in (tts.generate, lambda *given, **more: list(tts.generate_streaming(*given, **more))):
        with pytest.warns(UnspokenWarning, match=r"^max_len \(8 patches\) is reached before segment \d"):
            call(TEXT, max_len=8, **GIVEN)


def test_session_limits_each_segment(tts):
    with tts.session(seed=3, max_len=3, min_len=1, retry_badcase=False) as session:
        chunks = spoken(session, "it is so. it is not. who is it?")
    assert [chunk.sentence for chunk in chunks] == [0] * 3 + [1] * 3 + [2] * 3


def test_speech_limited_by_max_len_is_not_reported_as_truncated(tts):
    for most in range(10, 30):
        speech = tts.speak(TEXT, max_len=most, seed=3, retry_badcase=False, min_len=0)
        assert [segment.reason for segment in speech.segments] == [""] * len(speech.segments)


def test_speed_divides_all_durations_and_changes_nothing_else(tts):
    whole = tts.speak(TEXT, **GIVEN)
    fast = tts.speak(TEXT, speed=1.6, **GIVEN)
    np.testing.assert_array_equal(fast.latents, whole.latents)
    for one, other in zip(fast.segments, whole.segments, strict=True):
        assert (one.attempts, one.reason) == (other.attempts, other.reason)
        assert len(one.audio) == round(len(other.audio) / 1.6)
    # With the pause between the paragraphs.
    assert fast.audio_seconds == pytest.approx(whole.audio_seconds / 1.6, abs=0.005)
