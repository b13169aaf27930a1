"""Scores of a long narration, minute by minute: word error rate, pace, loudness, and likeness to the first minute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from voxcpm_validation.listening.hearing import HeardSegment
from voxcpm_validation.listening.recognition import word_errors

_MIN_SECONDS = 30.0


class Minute(BaseModel):
    """One minute of a narration: the segments whose middle lies in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    minute: int
    """From 1."""
    word_error_rate: float
    words_per_minute: float
    """Words said in a minute of the narration, pauses included."""
    level: float
    """Level of the speech without its pauses, in dB relative to full scale."""
    similarity: float
    """Cosine similarity of the voice to that of the first minute."""


class NarrationScores(BaseModel):
    """One system's scores over a narration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    case: str
    words: int
    word_error_rate: float
    pace_drift: float
    """Change of the words per minute from end to end of a line through the minutes, relative to their mean."""
    pace_spread: float
    """Largest departure of a minute's words per minute from their mean, relative to it."""
    level_drift: float
    """Change of the level from end to end of a line through the minutes, in dB."""
    level_spread: float
    """Largest departure of a minute's level from the mean, in dB."""
    min_similarity: float
    """Smallest similarity of a minute's voice to that of the first."""
    tried_again: int
    suspicious: int
    minutes: tuple[Minute, ...]
    segments: tuple[HeardSegment, ...]


def narration_scores(system: str, case: str, heard: Sequence[HeardSegment]) -> NarrationScores:
    """The scores of a narration's segments, in order. A last minute of less than 30 s is not a row of its own."""
    by_minute = _by_minute(heard)
    first = _voice(next(iter(by_minute.values())))
    minutes = tuple(_minute(number + 1, segments, first) for number, segments in by_minute.items())
    pace = np.array([minute.words_per_minute for minute in minutes])
    level = np.array([minute.level for minute in minutes])
    return NarrationScores(
        system=system,
        case=case,
        words=sum(h.words for h in heard),
        word_error_rate=word_errors([h.said for h in heard], [h.heard for h in heard]).rate,
        pace_drift=_drift(pace) / float(pace.mean()),
        pace_spread=float(np.abs(pace / pace.mean() - 1).max()),
        level_drift=_drift(level),
        level_spread=float(np.abs(level - level.mean()).max()),
        min_similarity=min(minute.similarity for minute in minutes),
        tried_again=sum(h.attempts > 1 for h in heard),
        suspicious=sum(h.suspicious for h in heard),
        minutes=minutes,
        segments=tuple(heard),
    )


def _by_minute(heard: Sequence[HeardSegment]) -> dict[int, list[HeardSegment]]:
    minutes: dict[int, list[HeardSegment]] = defaultdict(list)
    began = 0.0
    for segment in heard:
        minutes[int((began + segment.seconds / 2) // 60)].append(segment)
        began += segment.seconds + segment.pause
    last = max(minutes)
    if len(minutes) > 1 and _seconds(minutes[last]) < _MIN_SECONDS:
        minutes.pop(last)
    return dict(minutes)


def _minute(number: int, segments: Sequence[HeardSegment], first: np.ndarray) -> Minute:
    power = [10 ** (segment.level / 10) * segment.seconds for segment in segments]
    return Minute(
        minute=number,
        word_error_rate=word_errors([s.said for s in segments], [s.heard for s in segments]).rate,
        words_per_minute=60 * sum(s.words for s in segments) / _seconds(segments),
        level=float(10 * np.log10(sum(power) / sum(s.seconds for s in segments))),
        similarity=float(_voice(segments) @ first),
    )


def _voice(segments: Sequence[HeardSegment]) -> np.ndarray:
    mean = np.sum([np.array(s.embedding) * s.seconds for s in segments], axis=0)
    return np.asarray(mean / np.linalg.norm(mean))


def _seconds(segments: Sequence[HeardSegment]) -> float:
    return sum(s.seconds + s.pause for s in segments)


def _drift(values: np.ndarray) -> float:
    """Change from end to end of a line through the values (minutes,)."""
    if len(values) < 2:
        return 0.0
    return float(np.polyfit(np.arange(len(values)), values, 1)[0] * (len(values) - 1))
