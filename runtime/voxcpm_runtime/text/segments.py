"""A long text in parts that are spoken as one utterance each."""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from voxcpm_runtime.text.sentences import sentences

_CLOSERS = "[\"'”’»」』》〉)\\]}）】〕］]*"
_WIDE = "぀-ヿ㐀-䶿一-鿿豈-﫿"
# Where a sentence that is too long is cut, best first: after a stop in a quotation, after a clause, between words.
_CUTS = (
    re.compile(rf"[。！？｡।॥؟۔]+{_CLOSERS}|(?<![.!?…])[.!?…]+{_CLOSERS}(?=\s|[{_WIDE}])"),
    re.compile(rf"[，、；：—]+{_CLOSERS}|[,;:–-]{_CLOSERS}(?=\s)"),
    re.compile(rf"\s+|(?<=[{_WIDE}])(?=\w)|(?<=\w)(?=[{_WIDE}])"),
)
# A cut this near to an end, as a share of the text, is worse than a lesser one in the middle.
_EDGE = 0.2
_ZERO_WIDTH_JOINER = "\u200d"


class Segment(NamedTuple):
    """Spoken as one utterance."""

    text: str
    """Without white space at its ends; it has a letter or a digit."""
    ends_paragraph: bool
    """Whether a blank line follows."""


def segments(text: str, count_tokens: Callable[[str], int], target: int) -> list[Segment]:
    """The text in parts of at most `target` tokens: whole sentences of one paragraph, in parts of about one length.

    Only a sentence of more than `target` tokens is cut: after a stop within it, a clause or a word, else between two
    characters. Marks without a letter or digit go with their neighbours, unless a word leaves no room for them; a
    paragraph of them is left out, and a text of them gives no segment. A single character is a segment whatever its
    tokens. `count_tokens` is called less than twice a segment and a paragraph, with text as it will be spoken.
    """
    result: list[Segment] = []
    for paragraph, ends, closed in _paragraphs(text):
        parts = [part for part in _fitted(paragraph, ends, count_tokens, target) if has_words(part)]
        result += [Segment(part, ends_paragraph=False) for part in parts[:-1]]
        result += [Segment(part, closed) for part in parts[-1:]]
    return result


def one_segment(sentence: str) -> list[Segment]:
    """The sentence as one segment; none where there is nothing to say."""
    ends_paragraph = sentence[len(sentence.rstrip()) :].count("\n") > 1
    return [Segment(sentence.strip(), ends_paragraph)] if has_words(sentence) else []


def has_words(text: str) -> bool:
    """Whether there is anything to say."""
    return any(char.isalnum() for char in text)


def _paragraphs(text: str) -> Iterator[tuple[str, list[int], bool]]:
    """Each paragraph, where in it sentences end, and whether a blank line follows."""
    said: list[str] = []
    ends: list[int] = []
    for sentence in sentences(text):
        said.append(sentence.text)
        ends.append(len(sentence.text) + (ends[-1] if ends else 0))
        if sentence.ends_paragraph:
            yield "".join(said), ends, True
            said, ends = [], []
    if said:
        yield "".join(said), ends, False


def _fitted(text: str, ends: Sequence[int], count: Callable[[str], int], target: int) -> Iterator[str]:
    """The text in parts of `target` tokens at most, cut in two as often as that takes. ends: of its sentences."""
    said = text.strip()
    tokens = count(said) if said else 0
    parts = math.ceil(tokens / target)
    cut = _cut(text, ends, len(text) * (parts // 2) / parts) if parts > 1 else None
    if cut is not None:
        later = bisect_left(ends, cut)
        yield from _fitted(text[:cut], ends[:later], count, target)
        yield from _fitted(text[cut:], [end - cut for end in ends[later:]], count, target)
    elif said:
        yield said


def _cut(text: str, ends: Sequence[int], wanted: float) -> int | None:
    """The best place near `wanted` to cut the text in two; None where there is none."""
    letters = [at for at, char in enumerate(text) if char.isalnum()] or [0]

    def within(places: Iterable[int]) -> list[int]:
        """Those with something to say on either side."""
        return [at for at in places if letters[0] < at <= letters[-1]]

    if sentence_ends := within(ends):
        return _nearest(sentence_ends, wanted)
    edge = len(text) * _EDGE
    places: list[int] = []
    for pattern in _CUTS:
        places += within(found.end() for found in pattern.finditer(text))
        if middle := [at for at in places if edge <= at <= len(text) - edge]:
            return _nearest(middle, wanted)
    characters = [at for at in range(1, len(text)) if not _is_joined(text[at - 1], text[at])]
    return _nearest(places or characters, wanted)


def _nearest(places: Iterable[int], wanted: float) -> int | None:
    return min(places, key=lambda at: abs(at - wanted), default=None)


def _is_joined(before: str, char: str) -> bool:
    """Whether the two are one character to a reader: accents, joined emoji."""
    return _ZERO_WIDTH_JOINER in (before, char) or unicodedata.category(char).startswith("M")
