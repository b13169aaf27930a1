"""Long text in parts of a few sentences, each spoken as one utterance."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple


class Segment(NamedTuple):
    """One utterance."""

    text: str
    ends_paragraph: bool
    """Whether a pause follows."""


def segments(text: str, count_tokens: Callable[[str], int], target: int) -> list[Segment]:
    """Whole sentences up to `target` tokens, never across a blank line."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        parts = [""]
        for sentence in re.split(r"(?<=[.!?。！？])\s*", paragraph.strip()):
            joined = f"{parts[-1]} {sentence}".strip()
            if parts[-1] and count_tokens(joined) > target:
                parts.append(sentence)
            else:
                parts[-1] = joined
        found += [Segment(part, index == len(parts)) for index, part in enumerate(parts, start=1) if part]
    return found
