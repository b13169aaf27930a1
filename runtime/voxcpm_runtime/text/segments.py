"""Splitting a long text into segments, each spoken as one utterance."""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from voxcpm_constants.errors import InputError
from voxcpm_runtime.text.sentences import each_sentence

_CLOSERS = "[\"'”’»」』》〉)\\]}）】〕］]*"
WIDE = "぀-ヿ㐀-䶿一-鿿\uf900-\ufaff"
# Where to split a sentence that is too long, best first: after a stop in a quotation, after a clause, between words.
_SPLIT_PATTERNS = (
    re.compile(rf"[。！？｡।॥؟۔]+{_CLOSERS}|(?<![.!?…])[.!?…]+{_CLOSERS}(?=\s|[{WIDE}])"),
    re.compile(rf"[，、；：—]+{_CLOSERS}|[,;:–-]{_CLOSERS}(?=\s)"),
    re.compile(rf"\s+|(?<=[{WIDE}])(?=\w)|(?<=\w)(?=[{WIDE}])"),
)
# A split within this fraction of the text from either end is worse than a lower-ranked one in the middle.
_EDGE = 0.2
# The same for the end of a sentence: a segment of one or two words sounds bad.
_SENTENCE_EDGE = 0.1
# A longer paragraph is split in blocks of so many characters: the minimum, and per token of a segment.
_MIN_BLOCK = 4000
_BLOCK_CHARACTERS = 20
_WORD, _BLANK_LINE = re.compile(r"[^\W_]"), re.compile(r"\n\s*\n")
_ZERO_WIDTH_JOINER = "\u200d"


class Segment(NamedTuple):
    """A part of a text that is spoken as one utterance."""

    text: str
    """What to say. From `each_segment` it is stripped and has at least one letter or digit."""
    ends_paragraph: bool  # Whether a blank line follows
    part: Any = None
    """The part of a text with markup that it belongs to (`voxcpm_runtime.speech.markup.parsing.Part`)."""
    place: tuple[int, int] = (0, 0)  # Its characters in what is said of that part
    followed: bool | None = None
    """Whether another segment follows; None if unknown, as in a session."""
    control: str = ""  # The description that a session's text begins with (VoxCPM2)


def each_segment(
    text: str, count_tokens: Callable[[str], int], target: int, check: Callable[[], object] = lambda: None
) -> Iterator[Segment]:
    """Yield the text in segments of at most `target` tokens: whole sentences of one paragraph, of about equal length.

    A sentence is split only if it has more than `target` tokens or would leave a very short segment: after a stop
    within it or a clause, else between words, at last between two characters. Text without letters or digits joins its
    neighbours if there is room; a paragraph of it is left out.

    The text is read lazily, by paragraphs, and very long paragraphs in blocks. `check` is called after each and may
    raise: there may be millions of characters before the first segment.
    """
    for paragraph, ends, closed in _paragraphs(text, max(_MIN_BLOCK, _BLOCK_CHARACTERS * target)):
        check()
        if not has_words(paragraph):
            continue
        parts = [part for part in _bisect(paragraph, ends, count_tokens, target) if has_words(part)]
        yield from (Segment(part, ends_paragraph=False) for part in parts[:-1])
        yield from (Segment(part, closed) for part in parts[-1:])


def one_segment(sentence: str) -> list[Segment]:
    """The sentence as a single segment; empty if there is nothing to say."""
    ends_paragraph = sentence[len(sentence.rstrip()) :].count("\n") > 1
    return [Segment(sentence.strip(), ends_paragraph)] if has_words(sentence) else []


def has_words(text: str) -> bool:
    """Whether the text has anything to say: a letter or a digit."""
    return _WORD.search(text) is not None


def require_words(text: str) -> None:
    """Raises InputError if the text has nothing to say."""
    if not has_words(text):
        raise InputError(f"no letter or digit in {text[:60]!r}; expected text to speak", argument="text")


def has_blank_lines(text: str) -> bool:
    """Whether the text has several paragraphs."""
    return _BLANK_LINE.search(text.strip()) is not None


def _paragraphs(text: str, max_characters: int) -> Iterator[tuple[str, list[int], bool]]:
    """Each paragraph, the indices where its sentences end, and whether a blank line follows.

    A paragraph longer than `max_characters` is split into several.
    """
    said: list[str] = []
    ends: list[int] = []
    for sentence in each_sentence(text):
        said.append(sentence.text)
        ends.append(len(sentence.text) + (ends[-1] if ends else 0))
        if sentence.ends_paragraph or ends[-1] >= max_characters:
            yield "".join(said), ends, sentence.ends_paragraph
            said, ends = [], []
    if said:
        yield "".join(said), ends, False


def _bisect(text: str, ends: Sequence[int], count: Callable[[str], int], target: int) -> Iterator[str]:
    """The text in parts of at most `target` tokens, by bisection. ends: indices where sentences end."""
    said = text.strip()
    tokens = count(said) if said else 0
    parts = math.ceil(tokens / target)
    cut = _split_point(text, ends, len(text) * (parts // 2) / parts) if parts > 1 else None
    if cut is not None:
        later = bisect_left(ends, cut)
        yield from _bisect(text[:cut], ends[:later], count, target)
        yield from _bisect(text[cut:], [end - cut for end in ends[later:]], count, target)
    elif tokens:
        yield said


def _split_point(text: str, ends: Sequence[int], ideal: float) -> int | None:
    """Index of the best split near `ideal`; None if the text cannot be split."""
    letters = [at for at, char in enumerate(text) if char.isalnum()] or [0]

    def within(places: Iterable[int]) -> list[int]:
        """The places with letters or digits on both sides."""
        return [at for at in places if letters[0] < at <= letters[-1]]

    def nearest_inner(places: Iterable[int], share: float) -> int | None:
        """The place nearest to `ideal` that leaves this fraction of the text on both sides."""
        edge = len(text) * share
        return _nearest([at for at in places if edge <= at <= len(text) - edge], ideal)

    sentence_ends = within(ends)
    if (inner := nearest_inner(sentence_ends, _SENTENCE_EDGE)) is not None:
        return inner
    places: list[int] = []
    for pattern, between_words in zip(_SPLIT_PATTERNS, (False, False, True), strict=True):
        if between_words and sentence_ends:
            return _nearest(sentence_ends, ideal)
        places += within(found.end() for found in pattern.finditer(text))
        if (inner := nearest_inner(places, _EDGE)) is not None:
            return inner
    characters = [at for at in range(1, len(text)) if not _is_one_grapheme(text[at - 1], text[at])]
    return _nearest(places or characters, ideal)


def _nearest(places: Iterable[int], ideal: float) -> int | None:
    return min(places, key=lambda at: abs(at - ideal), default=None)


def _is_one_grapheme(before: str, char: str) -> bool:
    """Whether both belong to one grapheme, such as an accented letter or a joined emoji."""
    return _ZERO_WIDTH_JOINER in (before, char) or unicodedata.category(char).startswith("M")
