"""Tables of text rules: sets of words, and patterns with what takes their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Substitution = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]


def substituted(text: str, substitutions: Iterable[Substitution]) -> str:
    """The text after all substitutions, in their order; each sees what those before it made."""
    for pattern, replacement in substitutions:
        text = pattern.sub(replacement, text)
    return text


def word_set(words: str) -> frozenset[str]:
    """The words of a table that is written as a text."""
    return frozenset(words.split())


def any_of(words: Iterable[str]) -> str:
    """A pattern of any of the words, the longest first; the group has no number."""
    return "(?:" + "|".join(map(re.escape, sorted(words, key=lambda word: (-len(word), word)))) + ")"
