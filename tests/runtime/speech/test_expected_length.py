"""Speech whose length does not fit its text: judged by `speech.json`, retried, truncated, reported."""

import itertools
import warnings

import numpy as np
import pytest

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.speech_profile import SpeechProfile
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.speech import budget, expected_length
from voxcpm_runtime.speech.results import SuspiciousWarning, TooLongWarning, TooShortWarning
from voxcpm_runtime.speech.saved_segments import SavedSegments
from voxcpm_runtime.voxcpm import VoxCPM

# Ten letters at 20 ms, and patches of 20 ms: 10 patches are expected, 14 are too many, 5 too few, 20 hopeless.
TEXT = "hello there."
PROFILE = SpeechProfile(longest_seconds=1, longest_tokens=13, seconds_per_letter=0.02)


@pytest.fixture
def tts(bundle_folder, architecture, sizes, constants, models, monkeypatch):
    """A voice with a `speech.json`, in which a prompt of ten tokens tells a pace."""
    monkeypatch.setattr(expected_length, "_SLACK", 0.0)
    monkeypatch.setattr(budget, "_ANCHOR_SECONDS", 0.1)
    Manifest.read(bundle_folder).model_copy(update={"speech": PROFILE}).write(bundle_folder)
    return VoxCPM(open_bundle(bundle_folder), Driver(architecture, sizes, constants, models))


@pytest.fixture
def lengths(stop_after):
    """Set the lengths of the next attempts in patches."""

    def scripted(*wanted):
        left = iter(wanted)
        stop_after(lambda _: next(left))

    return scripted


@pytest.mark.parametrize(("patches", "pace"), [(11, 11 / 8), (14, 1.5), (6, 0.8)])
def test_slow_voice_raises_the_expected_length_within_limits(tts, lengths, patches, pace):
    lengths(4)
    speech = tts.speak(
        "it is.", voice=slow_voice(tts, "hello you ", patches), seed=5, retry_badcase_max_times=1
    )
    assert speech.segments[0].expected_seconds == pytest.approx(4 * 0.02 * pace)


@pytest.mark.parametrize("bad", [5, 14])
def test_too_long_or_short_speech_is_retried(tts, lengths, bad):
    lengths(bad, 12)
    speech = tts.speak(TEXT, seed=5)
    assert (speech.attempts, speech.seed, len(speech.latents)) == (2, 6, 12)
    assert (speech.stopped, speech.suspicious) == (True, ())


@pytest.mark.parametrize(("tried", "best", "reason"), [((4, 15, 18), 1, "long"), ((5, 4, 4), 0, "short")])
def test_best_bad_attempt_is_nearest_to_the_expected_length(tts, lengths, tried, best, reason):
    lengths(*tried)
    with pytest.warns(SuspiciousWarning, match=rf"^segment 1: .*suspiciously {reason}.*expected 0\.2 s"):
        speech = tts.speak(TEXT, seed=5)
    assert (speech.attempts, speech.seed, len(speech.latents)) == (3, 5 + best, tried[best])
    assert speech.suspicious == ((1, reason, pytest.approx(tried[best] * 0.02), pytest.approx(0.2)),)
    lengths(tried[best])
    alone = tts.speak(TEXT, seed=5 + best, retry_badcase=False)
    np.testing.assert_array_equal(speech.audio, alone.audio)


def test_attempt_that_stopped_is_preferred_to_a_truncated_one(tts, lengths):
    """A short attempt is kept although the hopeless one ended nearer to the expected length, because that is noise."""
    lengths(1000, 4, 1000)
    with pytest.warns(TooShortWarning):
        speech = tts.speak(TEXT, seed=5)
    assert (len(speech.latents), speech.seed, speech.stopped) == (4, 6, True)


def test_stream_warns_immediately_and_ends(tts, lengths):
    for wanted, told_at, category in ((1000, 14, TooLongWarning), (4, 4, TooShortWarning)):
        lengths(wanted)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            told = [len(caught) for _ in tts.generate_streaming(TEXT, seed=5, chunk_patches=1)]
        assert told.index(1) + 1 == told_at
        assert len(told) == min(wanted, 20)
        assert [warning.category for warning in caught] == [category]
        assert "streams are not retried" in str(caught[0].message)


def test_callers_limits_take_precedence(tts, lengths):
    lengths(*[1000] * 9)
    for given, patches, attempts in (
        ({"retry_badcase": False}, 34, 1),  # the room in the KV cache
        ({"max_len": 30, "retry_badcase_max_times": 1}, 30, 1),
        # 2 · 13 tokens = 26 would be too long
        ({"retry_badcase_ratio_threshold": 2.0, "max_len": 25}, 25, 1),
        # Upstream's default ratio does not count as a request.
        ({"retry_badcase_ratio_threshold": 6.0, "retry_badcase_max_times": 1}, 20, 1),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            speech = tts.speak(TEXT, seed=5, **given)
        assert (len(speech.latents), speech.attempts) == (patches, attempts), given


def test_requested_length_is_not_suspicious(tts, lengths):
    lengths(27)
    assert tts.speak(TEXT, seed=5, min_len=25).suspicious == ()


def test_saved_segments_are_judged_like_new_ones(tts, lengths, tmp_path):
    text = "hello you. hello me. it is so."

    def saved():
        return SavedSegments(tmp_path / "book.wav", "d", 5, drawn=False)

    lengths(8, 10, 10, 10, 6)
    with pytest.warns(TooLongWarning, match="^segment 2: "):
        first = tts.speak(text, seed=5, saved_segments=saved())
    again = tts.speak(text, seed=5, saved_segments=saved())
    assert [(s.number, s.reason) for s in first.suspicious] == [(2, "long")]
    assert again.suspicious == first.suspicious
    np.testing.assert_array_equal(again.audio, first.audio)


def slow_voice(tts, transcript, patches):
    samples = patches * tts.bundle.architecture.patch_input_samples
    audio = np.random.default_rng(0).standard_normal(samples).astype(np.float32) * 0.1
    voice = tts.create_voice((audio, 1000), transcript, name="slow")
    assert voice.prompt_patches == patches
    return voice


@pytest.mark.parametrize("architecture", ["voxcpm2"], indirect=True)
def test_control_does_not_count_as_spoken_text(tts, lengths):
    lengths(4, 4)
    speech = tts.speak("hi me. is it.", seed=5, control="42 b", segment_tokens=10)
    # Four letters in four patches are pace 1, whatever was read before them.
    assert [segment.expected_seconds for segment in speech.segments] == pytest.approx([0.08, 0.08])
    normalized = tts.plan("hi me.", control="40 b", normalize=True).segments[0]
    assert normalized.target_tokens > len("(40 b) hi me. ")
    assert normalized.letters == 4


def test_bad_segment_does_not_change_the_expected_pace(tts, lengths, tmp_path):
    """The first one is twice as long as expected; at 1.5 times the time, 5 patches for seven letters are too short."""

    def spoken():
        saved = SavedSegments(tmp_path / "book.wav", "d", 5, drawn=False)
        return tts.speak("hello you. hello me.", seed=5, retry_badcase_max_times=1, saved_segments=saved)

    lengths(16, 5)
    with pytest.warns(TooLongWarning):
        first = spoken()
    (tmp_path / ".book.wav.segments" / "00001.segment").unlink()
    lengths(5)
    resumed = spoken()
    for speech in (first, resumed):
        assert [segment.number for segment in speech.suspicious] == [1]
        assert speech.segments[1].expected_seconds == pytest.approx(0.14)


@pytest.fixture
def clock(monkeypatch):
    """A patch takes a second on this clock."""
    ticks, now = itertools.count(), [0.0]
    generate = Driver.generate_patches

    def timed(*arguments, **options):
        for patch in generate(*arguments, **options):
            now[0] += 1.0
            yield patch

    monkeypatch.setattr("time.perf_counter", lambda: now[0] + next(ticks) * 1e-6)
    monkeypatch.setattr(Driver, "generate_patches", timed)


def test_progress_counts_all_segments_audio_and_all_attempts_work(tts, lengths, request):
    told = []
    lengths(14, 8, 8)
    request.getfixturevalue("clock")
    speech = tts.speak("hello you. hello me.", seed=5, progress=told.append, segment_tokens=11)
    assert [segment.attempts for segment in speech.segments] == [2, 1]
    assert (told[-1].segment, told[-1].segments, told[-1].patches) == (1, 2, 8)
    assert told[-1].audio_seconds == pytest.approx(16 * 0.02)
    assert told[-1].elapsed_seconds == pytest.approx(30.0, abs=1.1)  # a patch may be predicted ahead


def test_a_slow_heading_does_not_make_good_segments_short(tts, lengths, monkeypatch):
    """Two letters in 5 patches may be; at that pace 7 patches for the next eight letters would be too short."""
    monkeypatch.setattr(expected_length, "_SLACK", 0.1)
    lengths(5, 7, 6)
    speech = tts.speak("so.\n\nhello you. hello me.", seed=5, segment_tokens=11)
    assert [(len(spoken.latents), spoken.attempts) for spoken in speech.segments] == [(5, 1), (7, 1), (6, 1)]
