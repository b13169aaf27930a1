"""Scores of a listening test by machine: sentences never trained on, spoken by upstream and by a bundle's precisions.

Measured are the word error rate, the length relative to the natural one, cut ends, and the likeness of the voice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from voxcpm_runtime.backends.step_function import Floats
from voxcpm_validation.listening.material import Clip, Material, PromptVoice, prompt_clip
from voxcpm_validation.listening.recognition import Recogniser, word_errors
from voxcpm_validation.listening.speaker_similarity import SpeakerEncoder

# The end of an utterance counts as cut if its level, relative to the peak, is higher than this.
_CUT_DB = -26.0
_END_SECONDS = 0.03
_NATURAL = 0.15
_RUNAWAY = 2.0


Speak = Callable[[str, "PromptVoice | None", int], Clip]
"""speak(sentence, voice, seed): a sentence as a continuation of the voice's prompt, or zero-shot for None."""


class Scores(BaseModel):
    """One system's scores over all sentences, zero-shot or as a continuation of one prompt."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    case: str
    sentences: int
    word_error_rate: float
    length_ratio: float
    """Total length divided by the natural one; for zero-shot speech, by the mean of the continued voices'."""
    within_natural: float
    """Share of sentences whose length is within 15 % of natural."""
    longest_ratio: float
    """Largest length of a sentence divided by its natural one."""
    runaways: int
    """Number of sentences more than twice as long as natural."""
    cut_ends: int
    similarity: float | None = None
    """Mean cosine similarity to the prompt's voice."""
    other_similarity: float | None = None
    """Mean cosine similarity to the most similar of the other voices."""
    right_voice: float | None = None
    """Share of sentences that are more similar to the prompt than to any other voice."""
    heard: tuple[str, ...]
    """The transcript of each sentence."""


def listen(
    speakers: Mapping[str, Speak],
    test: Material,
    *,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> list[Scores]:
    """Scores of each system and case: zero-shot, and continuation of each prompt that the test continues.

    Every system speaks sentence i with seed `seed` + i. `report` is called with the current system, case and sentence.
    Raises ModuleNotFoundError without the recogniser's packages, MissingExtraError without the speaker encoder's.
    """
    recogniser, encoder = Recogniser(), SpeakerEncoder()
    gallery = {voice.name: encoder.embed(*prompt_clip(voice)) for voice in test.voices}
    scores = []
    for system, speak in speakers.items():
        for voice in (None, *(voice for voice in test.voices if voice.continued)):
            case = "zero-shot" if voice is None else f"continuation, {voice.name}"
            clips, heard = [], []
            for i, sentence in enumerate(test.sentences):
                report(f"{system}, {case}: sentence {i + 1} of {len(test.sentences)}")
                clips.append(speak(sentence, voice, seed + i))
                heard.append(recogniser.transcribe(*clips[-1]))
            found = (
                {} if voice is None else _likeness(voice, gallery, [encoder.embed(*clip) for clip in clips])
            )
            scores.append(_scored(system, case, test, voice, clips, heard, found))
    return scores


def _scored(
    system: str,
    case: str,
    test: Material,
    voice: PromptVoice | None,
    clips: Sequence[Clip],
    heard: Sequence[str],
    likeness: Mapping[str, Any],
) -> Scores:
    seconds = np.array([len(clip.audio) / clip.sample_rate for clip in clips])
    voices = [voice] if voice is not None else [v for v in test.voices if v.continued]
    natural = np.mean([v.natural_seconds[: len(clips)] for v in voices], axis=0)
    ratios = seconds / natural
    return Scores(
        system=system,
        case=case,
        sentences=len(clips),
        word_error_rate=word_errors(test.sentences, heard).rate,
        length_ratio=float(seconds.sum() / natural.sum()),
        within_natural=float(np.mean(np.abs(ratios - 1) <= _NATURAL)),
        longest_ratio=float(ratios.max()),
        runaways=int(np.sum(ratios > _RUNAWAY)),
        cut_ends=sum(_is_cut(clip) for clip in clips),
        heard=tuple(heard),
        **likeness,
    )


def _likeness(
    voice: PromptVoice, gallery: Mapping[str, Floats], clones: Sequence[Floats]
) -> dict[str, float]:
    own = np.array([clone @ gallery[voice.name] for clone in clones])
    others = np.array([[clone @ e for name, e in gallery.items() if name != voice.name] for clone in clones])
    return {
        "similarity": float(own.mean()),
        "other_similarity": float(others.max(1).mean()),
        "right_voice": float(np.mean(own > others.max(1))),
    }


def _is_cut(clip: Clip) -> bool:
    """Whether the last 30 ms are not quiet."""
    end = clip.audio[-int(_END_SECONDS * clip.sample_rate) :]
    peak = float(np.abs(clip.audio).max()) or 1.0
    return float(np.sqrt(np.mean(end**2))) > peak * 10 ** (_CUT_DB / 20)
