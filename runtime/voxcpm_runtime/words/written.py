"""The words of a text as it is written, and what each of them is read as."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from voxcpm_runtime.text.normalization import english_reader
from voxcpm_runtime.text.segments import WIDE

# Chinese and Japanese marks end a word without a space: 5。Hello, but not 5：30.
_MARKS = "、。！？；"
_PART = re.compile(
    rf"[{WIDE}]|[^\s{WIDE}{_MARKS}]*?(?:[{_MARKS}]|[，：](?!\d))+[」』）】》〉”’]*|[^\s{WIDE}{_MARKS}]+"
)


class SaidSpan(NamedTuple):
    """A word as it is written, with its punctuation, and the characters of the said text that it is read as."""

    text: str
    start: int
    end: int  # Equal to `start` for a word that is not said


def said_spans(text: str, said: str) -> list[SaidSpan]:
    """The words of a text in order: what spaces separate; of Chinese and Japanese, the characters.

    said: the same text as it is said, such as "four dollars" for "$4". Words that are said as they are written are
    matched first. The others are read one by one; where their context reads them differently, they share what is said.
    """
    written, heard = _words(text), _words(said)
    own = [_letters(text[start:end]) for start, end in written]
    others = [_letters(said[start:end]) for start, end in heard]
    owners: list[int] = []  # Index of the written word of each said one
    for kind, first, last, start, end in _matched(own, others):
        if kind == "equal":
            owners += range(first, last)
        elif last - first < 2:
            owners += [first if last > first else max(first - 1, 0)] * (end - start)
        else:
            alone = [_read_alone(text[slice(*written[index])]) for index in range(first, last)]
            owners += [first + index for index in _shared(alone, others[start:end])]
    spans: list[SaidSpan] = []
    reached = at = 0
    for index, (start, end) in enumerate(written):
        first = at
        while at < len(owners) and owners[at] == index:
            at += 1
        begin, reached = (heard[first][0], heard[at - 1][1]) if at > first else (reached, reached)
        spans.append(SaidSpan(text[start:end], begin, reached))
    return spans


def _shared(alone: Sequence[Sequence[str]], heard: Sequence[str]) -> list[int]:
    """The index of the word that each heard one belongs to. alone: what each word is read as by itself."""
    origins = [index for index, read in enumerate(alone) for _ in read] or [0]
    found: list[int] = []
    for _, first, last, start, end in _matched([word for read in alone for word in read], heard):
        share = (last - first) / max(end - start, 1)
        nearest = [first + int(at * share) if share else max(first - 1, 0) for at in range(end - start)]
        found += [origins[min(at, len(origins) - 1)] for at in nearest]
    return found


def _words(text: str) -> list[tuple[int, int]]:
    """Start and end of each word. Marks without a letter or digit belong to the word before them, or the first one."""
    found: list[tuple[int, int]] = []
    begin = None
    for part in _PART.finditer(text):
        if any(map(str.isalnum, part[0])):
            found.append((part.start() if begin is None else begin, part.end()))
            begin = None
        elif found:
            found[-1] = (found[-1][0], part.end())
        elif begin is None:
            begin = part.start()
    return found


def _letters(word: str) -> str:
    return "".join(filter(str.isalnum, word.casefold()))


def _read_alone(word: str) -> list[str]:
    said = (english_reader() or str)(word)
    return [_letters(said[start:end]) for start, end in _words(said)]


def _matched(first: Sequence[str], second: Sequence[str]) -> Iterable[tuple[str, int, int, int, int]]:
    return SequenceMatcher(None, first, second, autojunk=False).get_opcodes()
