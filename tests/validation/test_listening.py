"""The listening test: its measures, and the built-in voice transcribed by a recogniser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from voxcpm_validation.listening.material import Clip, material, prompt_clip
from voxcpm_validation.listening.recognition import Recogniser, word_errors
from voxcpm_validation.listening.scores import listen
from voxcpm_validation.listening.speaker_similarity import SpeakerEncoder
from voxcpm_validation.listening.speakers import bundle_speaker

SENTENCES = 10


def test_word_errors_count_words_not_spelling():
    assert word_errors(["the gray cat.", "two dogs"], ["The grey cat", "2 dogs"]).errors == 0
    counted = word_errors(["one bird sang loudly today"], ["one word sang today now"])
    assert (counted.errors, counted.words) == (3, 5)


def test_the_recogniser_hears_the_prompts():
    recogniser = Recogniser()
    voices = material().voices
    heard = [recogniser.transcribe(*prompt_clip(voice)) for voice in voices]
    assert word_errors([voice.transcript for voice in voices], heard).rate < 0.1


def test_a_voice_is_most_like_itself():
    encoder = SpeakerEncoder()
    halves = []
    for voice in material().voices:
        audio, rate = prompt_clip(voice)
        halves.append([encoder.embed(half, rate) for half in np.array_split(audio, 2)])
    first, second = (np.stack(part) for part in zip(*halves, strict=True))
    assert (np.argmax(first @ second.T, axis=1) == np.arange(len(halves))).all()
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, rtol=1e-5)


def test_scores_tell_a_runaway_a_cut_end_and_another_voice():
    test = material(3)
    prompts = {voice.name: prompt_clip(voice) for voice in test.voices}
    female, male = (voice for voice in test.voices if voice.continued)

    def speak(_, voice, seed):
        """A recording of the other voice that stops abruptly and, for the second sentence, is far too long."""
        audio, rate = prompts[male.name if voice is female else female.name]
        repeated = np.tile(audio, 5 if seed == 1 else 1)
        return Clip(repeated[: int(len(repeated) * 0.75)], rate)

    scores = {score.case: score for score in listen({"swapped": speak}, test)}

    swapped = scores[f"continuation, {female.name}"]
    assert swapped.word_error_rate > 0.5
    assert swapped.runaways == 1
    assert swapped.longest_ratio > 2
    assert swapped.right_voice == 0
    assert swapped.similarity < swapped.other_similarity
    assert scores["zero-shot"].right_voice is None


@pytest.mark.parametrize("precision", ["int8", pytest.param("fp16", marks=pytest.mark.slow)])
def test_the_built_in_voice_is_understood(speaking_bundle: Path, precision: str, record_property: object):
    for score in listen({precision: bundle_speaker(speaking_bundle, precision)}, material(SENTENCES)):
        record_property(score.case, score.model_dump_json())
        assert score.word_error_rate <= 0.12, (score.case, score.heard)
        assert 0.85 <= score.length_ratio <= 1.15
        assert score.runaways == 0
        assert score.cut_ends == 0
        assert score.right_voice is None or score.right_voice >= 0.9
