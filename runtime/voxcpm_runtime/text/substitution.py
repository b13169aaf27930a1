"""Rules that replace what a pattern matches, applied in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

Replacement = str | Callable[[re.Match[str]], str]
Substitution = tuple[re.Pattern[str], Replacement]


def rules(table: Mapping[str, Replacement]) -> tuple[Substitution, ...]:
    """The compiled rules of a table, pattern -> replacement, in order."""
    return tuple((re.compile(pattern), replacement) for pattern, replacement in table.items())


def substituted(text: str, substitutions: Iterable[Substitution]) -> str:
    """The text after all substitutions, applied in order."""
    for pattern, replacement in substitutions:
        text = pattern.sub(replacement, text)
    return text
