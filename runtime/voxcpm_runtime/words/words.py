"""The times of the words of a text, as it is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from voxcpm_runtime.words.pauses import Doubles
from voxcpm_runtime.words.written import said_spans

Method = Literal["pauses", "attention"]
"""How times were found: punctuation matched to pauses, or from the attention of the base language model."""


class Word(NamedTuple):
    """A word as it is written, with its punctuation, and when it is said, in seconds."""

    text: str
    start: float
    end: float
    method: Method
    place: int = 0  # Index of its first character in the text as it is written
    said: int = 1  # How many times it is said, 0 if the speech lacks it; 1 without alignment heads


def word_times(
    text: str, said: str, times: Sequence[float] | Doubles, *, start: float = 0.0, method: Method = "pauses"
) -> tuple[Word, ...]:
    """The words of a text in order.

    said: the text as it is said. times: when each character of that begins, and the last one ends (characters + 1,).
    start: seconds before the first sample, which are added.
    """
    words: list[Word] = []
    place = 0
    for word, first, end in said_spans(text, said):
        last = next((at for at in range(end, first, -1) if said[at - 1].isalnum()), first)
        place = text.index(word, place)
        begin, finish = (round(start + float(times[at]), 3) for at in (first, last))
        words.append(Word(word, begin, finish, method, place))
        place += len(word)
    return tuple(words)


def missed_words(words: Iterable[Word], replaced: str = "") -> dict[str, Any]:
    """For JSON: the words that are `unsaid` or `repeated`, with their places in the text, and `replaced`, if any.

    replaced: the characters that the voice cannot say.
    """
    found: dict[str, Any] = {"replaced": replaced} if replaced else {}
    for word in words:
        if word.said != 1:
            kind = "repeated" if word.said else "unsaid"
            found.setdefault(kind, []).append({"word": word.text, "place": word.place})
    return found


def character_times(text: str, words: Sequence[Word]) -> list[tuple[float, float]]:
    """Begin and end of each character of a text, in seconds. Words share their time evenly, spaces what is between."""
    knots, seconds, at = [0.0], [words[0].start if words else 0.0], 0
    for word in words:
        at = max(at, text.find(word.text, at))
        knots += [at, at + len(word.text)]
        seconds += [word.start, word.end]
        at += len(word.text)
    begins = np.interp(np.arange(len(text) + 1), knots, seconds).tolist()
    return list(pairwise(begins))
