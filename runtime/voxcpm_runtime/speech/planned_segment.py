"""One segment of a plan: what is known of an utterance before it is spoken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlannedSegment:
    """One utterance of the speech, as tokens. A short text is one segment."""

    text: str
    """The segment as the caller wrote it."""
    transcript: str
    """The prompt's transcript for a segment that continues this one: as this one is said, before it is spelled."""
    tokens: list[int]
    """Tokens of the prompt's transcript and of the text, tokenised together."""
    transcript_tokens: list[int]
    """Tokens of the prompt's transcript alone; the last one may differ from `tokens`, where the text follows."""
    target_tokens: int
    """Number of tokens of the text alone."""
    letters: int
    """Letters and digits of the text alone, which its expected time follows from."""
    ends_paragraph: bool
    """Whether a blank line follows."""
    anchors: bool = False
    """Whether its speech becomes a part of the voice that later segments continue, as no voice was given."""
    followed: bool | None = None
    """Whether another segment follows; None if that is not known, as in a session."""
