"""Scores of prose: word error rate over whole texts, and segments that are too long, cut, repeated or lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from voxcpm_validation.listening.hearing import HeardSegment
from voxcpm_validation.listening.recognition import is_repeated, lost_words, word_errors

LONG, SHORT = 1.4, 0.6
"""A segment is suspicious whose length divided by its natural one is not between these."""
LOST_WORDS = 3
"""A segment counts as cut if so many words in a row are missing."""

NaturalSeconds = Callable[[int], float]
"""The seconds that so many letters naturally take."""


class ProseSegment(BaseModel):
    """A segment with the figures that need its text or its neighbours."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    heard: HeardSegment
    length_ratio: float
    """Length divided by the natural one."""
    lost: int
    """Largest number of words in a row that are missing."""
    repeated: bool
    """Whether three words in a row are heard more often than they were asked for."""

    @property
    def is_cut(self) -> bool:
        """Whether speech is missing."""
        return self.length_ratio < SHORT or self.lost >= LOST_WORDS


class ProseScores(BaseModel):
    """One system's scores over one kind of prose, or over all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    case: str
    kind: str
    words: int
    """Number of words, as they are said."""
    word_error_rate: float
    """Errors relative to the words that the voice was given, in which numbers are words."""
    written_word_error_rate: float
    """Errors relative to the text as it is written."""
    length_ratio: float
    """Length divided by the natural one."""
    longest_ratio: float
    """The same for the segment where it is largest."""
    long: int
    """Number of segments longer than 1.4 times natural, after all attempts."""
    long_untried: int
    """Those of them that were not tried again."""
    cut: int
    """Number of segments shorter than 0.6 times natural, or with three words in a row missing."""
    repeated: int
    """Number of segments with three words in a row that are heard more often than asked."""
    tried_again: int
    """Number of segments that took more than one attempt."""
    suspicious: int
    """Number of segments whose last attempt the runtime itself reports as bad."""
    words_per_minute: float
    similarity: float | None = None
    """Mean cosine similarity to the prompt's voice."""
    segments: tuple[ProseSegment, ...]


def prose_segments(heard: Sequence[HeardSegment], natural: NaturalSeconds) -> list[ProseSegment]:
    """Each segment with its length relative to the natural one, and what is lost or repeated in it."""
    return [
        ProseSegment(
            heard=segment,
            length_ratio=segment.seconds / natural(segment.letters),
            lost=lost_words(segment.said, segment.heard),
            repeated=is_repeated(segment.said, segment.heard),
        )
        for segment in heard
    ]


def median_pace(heard: Sequence[HeardSegment]) -> NaturalSeconds:
    """The natural length by the median time that a letter takes in these segments."""
    pace = float(np.median([segment.seconds / max(segment.letters, 1) for segment in heard]))
    return lambda letters: pace * max(letters, 1)


def prose_scores(
    system: str, case: str, kind: str, segments: Sequence[ProseSegment], similarity: float | None = None
) -> ProseScores:
    """The scores of segments that were read in one voice."""
    heard = [segment.heard for segment in segments]
    transcripts = [h.heard for h in heard]
    spoken = word_errors([h.said for h in heard], transcripts)
    seconds = sum(h.seconds for h in heard)
    long = [segment for segment in segments if segment.length_ratio > LONG]
    return ProseScores(
        system=system,
        case=case,
        kind=kind,
        words=sum(h.words for h in heard),
        word_error_rate=spoken.rate,
        written_word_error_rate=word_errors([h.written for h in heard], transcripts).rate,
        length_ratio=seconds / sum(segment.heard.seconds / segment.length_ratio for segment in segments),
        longest_ratio=max(segment.length_ratio for segment in segments),
        long=len(long),
        long_untried=sum(segment.heard.attempts == 1 for segment in long),
        cut=sum(segment.is_cut for segment in segments),
        repeated=sum(segment.repeated for segment in segments),
        tried_again=sum(h.attempts > 1 for h in heard),
        suspicious=sum(h.suspicious for h in heard),
        words_per_minute=60 * sum(h.words for h in heard) / sum(h.seconds + h.pause for h in heard),
        similarity=similarity,
        segments=tuple(segments),
    )
