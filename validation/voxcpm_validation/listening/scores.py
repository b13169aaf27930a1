"""Scores of short sentences: word error rate, length relative to the natural one, cut ends, likeness of the voice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from voxcpm_runtime.backends.step_function import Floats
from voxcpm_validation.listening.hearing import HeardSegment
from voxcpm_validation.listening.material import PromptVoice
from voxcpm_validation.listening.recognition import word_errors

_NATURAL = 0.15
_RUNAWAY = 2.0


class Scores(BaseModel):
    """One system's scores over all sentences, zero-shot or as a continuation of one prompt."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    case: str
    sentences: int
    word_error_rate: float
    length_ratio: float | None = None
    """Total length divided by the natural one; for zero-shot speech, by the mean of the continued voices'.

    None if the speaker was not asked, as are the three figures that follow.
    """
    within_natural: float | None = None
    """Share of sentences whose length is within 15 % of natural."""
    longest_ratio: float | None = None
    """Largest length of a sentence divided by its natural one."""
    runaways: int | None = None
    """Number of sentences more than twice as long as natural."""
    cut_ends: int
    tried_again: int
    """Number of sentences that took more than one attempt."""
    similarity: float | None = None
    """Mean cosine similarity to the prompt's voice."""
    other_similarity: float | None = None
    """Mean cosine similarity to the most similar of the other voices."""
    right_voice: float | None = None
    """Share of sentences that are more similar to the prompt than to any other voice."""
    heard: tuple[HeardSegment, ...]
    """Each sentence."""


def sentence_scores(
    system: str,
    case: str,
    heard: Sequence[HeardSegment],
    voice: PromptVoice | None,
    voices: Sequence[PromptVoice],
    gallery: Mapping[str, Floats],
) -> Scores:
    """The scores of sentences in a voice, or zero-shot. gallery: the embedding of each voice, by its name."""
    natural = _natural_seconds(voice, voices, len(heard))
    ratios = np.array([segment.seconds for segment in heard]) / natural
    lengths: dict[str, Any] = {
        "length_ratio": float(np.sum(ratios * natural) / natural.sum()),
        "within_natural": float(np.mean(np.abs(ratios - 1) <= _NATURAL)),
        "longest_ratio": float(ratios.max()),
        "runaways": int(np.sum(ratios > _RUNAWAY)),
    }
    return Scores(
        system=system,
        case=case,
        sentences=len(heard),
        word_error_rate=word_errors([s.written for s in heard], [s.heard for s in heard]).rate,
        cut_ends=sum(segment.ends_abruptly for segment in heard),
        tried_again=sum(segment.attempts > 1 for segment in heard),
        heard=tuple(heard),
        **({} if np.isnan(natural).any() else lengths),
        **({} if voice is None else _likeness(voice, heard, gallery)),
    )


def similarity(heard: Sequence[HeardSegment], embedding: Floats) -> float:
    """Mean cosine similarity of the segments to an embedding (256,)."""
    return float(np.mean(np.array([segment.embedding for segment in heard]) @ embedding))


def _natural_seconds(voice: PromptVoice | None, voices: Sequence[PromptVoice], count: int) -> Floats:
    asked = [voice] if voice is not None else [v for v in voices if v.continued and v.natural_seconds]
    if not all(v.natural_seconds for v in asked):
        return np.full(count, np.nan, np.float32)
    return np.mean([v.natural_seconds[:count] for v in asked], axis=0, dtype=np.float32)


def _likeness(
    voice: PromptVoice, heard: Sequence[HeardSegment], gallery: Mapping[str, Floats]
) -> dict[str, Any]:
    clones = np.array([segment.embedding for segment in heard])
    own = clones @ gallery[voice.name]
    others = np.max([clones @ e for name, e in gallery.items() if name != voice.name], axis=0)
    return {
        "similarity": float(own.mean()),
        "other_similarity": float(others.mean()),
        "right_voice": float(np.mean(own > others)),
    }
