"""Text of any length: segments that fit the cache, one voice, pauses, progress."""

import re

import numpy as np
import pytest

from voxcpm_constants.errors import InputError
from voxcpm_runtime.speech import budget
from voxcpm_runtime.voices.voice import Voice, VoiceHeader

CHAPTER = """it is so. it is not. who is it? come in! why not.

good day. so be it. and a sentence that is a good deal longer than all of the others are, to be cut.

the end."""


@pytest.mark.usefixtures("stopping")
def test_a_text_longer_than_the_cache_is_spoken_whole_with_silence_between_paragraphs(tts, architecture):
    speech = tts.speak(CHAPTER, seed=3, paragraph_pause=0.5)
    said = "".join(segment.text for segment in speech.segments)
    assert re.sub(r"\s", "", said) == re.sub(r"\s", "", CHAPTER)
    assert len(speech.segments) > 6
    assert (speech.stopped, speech.seed) == (True, 3)
    silence = np.zeros(round(0.5 * speech.sample_rate), np.float32)
    assert sum(segment.ends_paragraph for segment in speech.segments) == 2
    pieces = [piece for s in speech.segments for piece in [s.audio] + [silence] * s.ends_paragraph]
    np.testing.assert_array_equal(speech.audio, np.concatenate(pieces))
    assert len(speech.latents) * architecture.patch_output_samples == len(speech.audio) - 2 * len(silence)


@pytest.mark.usefixtures("stopping")
def test_control_precedes_each_segment_without_continuation(tts, architecture, prompt_audio):
    if architecture.generation == "voxcpm":
        with pytest.raises(InputError, match="needs VoxCPM2"):
            tts.speak(CHAPTER, control="low", seed=3)
        return
    given = {"text": "so. it is. no.", "control": "low", "segment_tokens": 8}
    continued, referred = ["(low)so. ", "it is. ", "no. "], ["(low)so. ", "(low)it is. ", "(low)no. "]
    for recording, expected in ({}, continued), ({"reference_wav_path": prompt_audio}, referred):
        assert [segment.transcript for segment in tts.plan(**given, **recording).segments] == expected


def test_short_texts_have_segments_for_paragraphs_alone(tts):
    segments = tts.plan("\n\nso be it\n \nit is so.\n\n").segments
    assert [segment.text for segment in segments] == ["so be it", "it is so."]
    assert segments[0].ends_paragraph
    speech = tts.speak("so.\nbe it.", seed=1, max_len=5)
    assert len(speech.segments) == 1
    np.testing.assert_array_equal(speech.audio, tts.generate("so. be it.", seed=1, max_len=5))


def test_speech_truncated_by_the_cache_is_retried(tts):
    """Such speech is bad although it has less than six patches for each token."""
    with pytest.warns(UserWarning, match="cut off after 34 patches"):
        speech = tts.speak("hello there.", seed=1)
    assert speech.attempts == 3


@pytest.mark.usefixtures("stopping")
def test_anchor_grows_until_long_enough(tts, monkeypatch):
    """Later segments are added to the continued audio until it is long enough."""
    monkeypatch.setattr(budget, "_ANCHOR_SECONDS", 0.1)  # ten tokens
    text = "so.\n\nit is so.\n\nso be it.\n\nand it is so."
    # Segments as long as if speech were short, for which there is room.
    given = {"seed": 3, "retry_badcase": False, "retry_badcase_ratio_threshold": 0.3}
    planned = tts.plan(text, **given)
    _, second, third, last = planned.segments
    speech = tts.speak_plan(planned)
    heard = [segment.latents for segment in speech.segments]
    assert [segment.anchors for segment in planned.segments] == [True, True, False, False]
    assert second.transcript_tokens == tts.bundle.tokenizer("so. ")
    assert third.transcript_tokens == last.transcript_tokens == tts.bundle.tokenizer("so. it is so. ")
    empty = Voice(VoiceHeader.of(tts.bundle.architecture, name=""))
    anchor = empty.extended("so. it is so. ", np.concatenate(heard[:2]))
    alone = tts.speak("so be it.", voice=anchor, **given | {"seed": speech.segments[2].seed})
    np.testing.assert_array_equal(alone.latents, speech.segments[2].latents)
    streamed = np.concatenate(list(tts.generate_streaming(text, **given)))
    np.testing.assert_array_equal(streamed, speech.audio)


@pytest.mark.usefixtures("stopping")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("min_len", "segments"), [(2, 1), (34, 1), (10, 3)])
def test_each_segment_has_its_minimum_of_patches(tts, min_len, segments):
    text = " ".join(["so be it."] * segments)
    speech = tts.speak(text, seed=3, min_len=min_len, retry_badcase_ratio_threshold=0.5)
    assert [len(segment.latents) for segment in speech.segments] == [min_len + 2] * segments


@pytest.mark.usefixtures("stopping")
def test_min_len_too_large_for_later_segments_is_rejected_early(tts, models):
    with pytest.raises(InputError, match=r"the speech at least 24: \d+ needed, but the KV cache has 48"):
        tts.speak("so be it. " * 6, min_len=22)
    assert not any(model.calls for model in models.values())


@pytest.mark.usefixtures("stopping")
def test_segments_are_faded_where_they_join(tts):
    first, *inner, last = tts.speak(CHAPTER, seed=3).segments
    assert all(segment.audio[-1] == 0 for segment in (first, *inner))
    assert all(segment.audio[0] == 0 for segment in (*inner, last))
    assert 0 not in (first.audio[0], last.audio[-1])
