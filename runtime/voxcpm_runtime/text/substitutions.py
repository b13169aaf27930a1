"""Text rules, and the tables of words that they know."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

Replacement = str | Callable[[re.Match[str]], str]
Substitution = tuple[re.Pattern[str], Replacement]


def rules(table: Mapping[str, Replacement]) -> tuple[Substitution, ...]:
    """The rules of a table: what each pattern is replaced by, in order."""
    return tuple((re.compile(pattern), replacement) for pattern, replacement in table.items())


def substituted(text: str, substitutions: Iterable[Substitution]) -> str:
    """The text after all substitutions in order; each works on the result of those before it."""
    for pattern, replacement in substitutions:
        text = pattern.sub(replacement, text)
    return text


def any_of(words: Iterable[str]) -> str:
    """A pattern that matches any of the words, the longest first, in a non-capturing group."""
    return "(?:" + "|".join(map(re.escape, sorted(words, key=lambda word: (-len(word), word)))) + ")"


class Tables:
    """The tables of a text file: each has a heading in brackets, comments that begin with "# ", and lines."""

    def __init__(self, path: Path) -> None:
        self._lines: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("[") and line.endswith("]"):
                lines = self._lines[line[1:-1]] = []
            elif line and not line.startswith("# "):
                lines.append(line)

    def words(self, name: str) -> frozenset[str]:
        """A table of words with spaces between them."""
        return frozenset(word for line in self._lines[name] for word in line.split())

    def rows(self, name: str) -> dict[str, list[str]]:
        """A table of columns with tabs between them: the first one → the others."""
        return {key: columns for key, *columns in (line.split("\t") for line in self._lines[name])}

    def pairs(self, name: str) -> dict[str, str]:
        """A table of two columns: what is written → what is said."""
        return {key: said for key, (said,) in self.rows(name).items()}
