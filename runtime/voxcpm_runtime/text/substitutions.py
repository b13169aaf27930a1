"""Tables of text rules: sets of words, and patterns with their replacements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Replacement = str | Callable[[re.Match[str]], str]
Substitution = tuple[re.Pattern[str], Replacement]


def rules(*table: tuple[str, Replacement]) -> tuple[Substitution, ...]:
    """The rules of a table, with their patterns compiled."""
    return tuple((re.compile(pattern), replacement) for pattern, replacement in table)


def substituted(text: str, substitutions: Iterable[Substitution]) -> str:
    """The text after all substitutions in order; each works on the result of those before it."""
    for pattern, replacement in substitutions:
        text = pattern.sub(replacement, text)
    return text


def word_set(words: str) -> frozenset[str]:
    """The words of a table that is written as a text."""
    return frozenset(words.split())


def any_of(words: Iterable[str]) -> str:
    """A pattern that matches any of the words, the longest first, in a non-capturing group."""
    return "(?:" + "|".join(map(re.escape, sorted(words, key=lambda word: (-len(word), word)))) + ")"
