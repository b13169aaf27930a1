"""Scores of texts of one or two words: how many of them a recogniser understands."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from voxcpm_validation.listening.hearing import HeardSegment
from voxcpm_validation.listening.recognition import normalized

# Words that sound the same without a sentence around them, in the recogniser's normal form, where numbers are digits.
_SOUNDS_LIKE = {
    "to": "2", "too": "2", "for": "4", "ate": "8", "won": "1", "by": "bye", "buy": "bye", "know": "no", "y": "why",
    "knot": "not", "whose": "who is", "their": "there", "they are": "there", "coarse": "course", "knight": "night",
    "high": "hi", "inn": "in",
}  # fmt: skip


class ShortTextScores(BaseModel):
    """One system's score over texts of one or two words."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    case: str
    texts: int
    understood: int
    """Number of texts whose transcript sounds the same."""
    misunderstood: tuple[tuple[str, str], ...]
    """The other texts, each with its transcript."""
    tried_again: int
    longest_seconds: float


def short_text_scores(system: str, case: str, heard: Sequence[HeardSegment]) -> ShortTextScores:
    """The scores of texts, each of which is one segment."""
    wrong = [(h.written, h.heard) for h in heard if not is_understood(h.written, h.heard)]
    return ShortTextScores(
        system=system,
        case=case,
        texts=len(heard),
        understood=len(heard) - len(wrong),
        misunderstood=tuple(wrong),
        tried_again=sum(h.attempts > 1 for h in heard),
        longest_seconds=max(h.seconds for h in heard),
    )


def is_understood(text: str, heard: str) -> bool:
    """Whether the transcript sounds like the text, word by word; spaces do not count ("good night", "goodnight")."""
    return _sound(text) == _sound(heard)


def _sound(text: str) -> str:
    return "".join(_SOUNDS_LIKE.get(word, word) for word in normalized(text).split()).replace(" ", "")
