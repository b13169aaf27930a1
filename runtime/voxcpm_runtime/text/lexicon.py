"""Pronunciation lexicons: what is said for words as they are written, such as names.

A file has UTF-8 lines `written<TAB>said`; blank lines, and lines that begin with # and have no tab, are skipped.
"""

from __future__ import annotations

import bisect
import functools
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from voxcpm_constants.bounds import MAX_TEXT_BYTES
from voxcpm_constants.errors import InputError, naming_errors
from voxcpm_constants.json_files import read_bounded
from voxcpm_runtime.argument_types import path_argument, shown, valid_unicode, wrong_type
from voxcpm_runtime.text.segments import WIDE

Lexicon = Mapping[str, str]  # What is said, by what is written
LexiconSource = Lexicon | str | Path | Iterable[Lexicon | str | Path]

# VoxCPM's own input in braces is left alone, and Chinese and Japanese have no spaces between words.
_TOKEN = re.compile(rf"\s+|\{{[^{{}}]*\}}|[{WIDE}]|(?:[^\W{WIDE}][\u0300-\u036f]*)+|[^\w\s]")
# A word is written between spaces and punctuation: not U in U.S., 5 in $5.00, 1-5 and 5%, can in can't, or ada in
# ada@x.org; but in Ada's and Ada-like.
_LETTER = rf"[^\W{WIDE}]"
_FREE_START = re.compile(
    rf"(?<!{_LETTER}[.@'’])(?<!\d[,:])(?<![@#$€£¥₹&+=~^\\])(?:(?=\D)|(?<![-−–/])(?=\d))|(?!{_LETTER})"
)
_FREE_END = re.compile(
    rf"(?<={_LETTER})(?![.@]{_LETTER}|[,:]\d|['’](?!(?:s|ll|d|ve|re|m)\b)[^\W\d]|[@#%°&+=~^\\])"
    rf"(?:(?<=\D)|(?![-−–/]))|(?<=[.'’])(?!{_LETTER})|(?<!{_LETTER})(?<![.'’])"
)


def lexicon_entries(source: LexiconSource | None) -> dict[str, str]:
    """The entries of a mapping, a file, or several of them, of which the last one wins.

    Raises InputError, with its line, for a file that is not a lexicon.
    """
    entries: dict[str, str] = {}
    if isinstance(source, Mapping):
        for written, said in source.items():
            _add(entries, written, said, "lexicon")
    elif isinstance(source, str | Path):
        path = path_argument(source, "lexicon")
        with naming_errors(f"lexicon {path}: cannot be read"):
            lines = read_bounded(path, MAX_TEXT_BYTES).decode("utf-8-sig").splitlines()
        for number, line in enumerate(lines, start=1):
            if line.strip() and not (line.startswith("#") and "\t" not in line):
                written, _, said = line.partition("\t")
                _add(entries, written, said, f"lexicon {path}, line {number}")
    elif isinstance(source, Iterable) and not isinstance(source, bytes):
        for one in source:
            entries |= lexicon_entries(one)
    elif source is not None:
        raise wrong_type(source, "lexicon", "a file, or a mapping of texts")
    return entries


def _add(entries: dict[str, str], written: object, said: object, where: str) -> None:
    if not isinstance(written, str) or not isinstance(said, str) or not written.strip() or not said.strip():
        raise InputError(f"{where}: expected WRITTEN, a tab, SAID, got {shown(written)} and {shown(said)}")
    entries[_same(" ".join(written.split()))] = " ".join(valid_unicode(said, where, "lexicon").split())


def pronounced(text: str, lexicon: Lexicon) -> str:
    """The text as the lexicon says it: whole words, the longest entry first.

    An entry in small letters applies to any case, any other one to its own case only.
    """
    return pronunciation(tuple(lexicon.items()))(text)


@functools.lru_cache(maxsize=16)
def pronunciation(entries: tuple[tuple[str, str], ...]) -> Callable[[str], str]:
    """The function from a text to the text as these entries say it (`pronounced`)."""
    said_for: dict[tuple[str, ...], str] = {}
    counts: dict[str, list[int]] = {}  # Tokens of the entries that begin with a token, the most first
    for written, said in entries:
        tokens = tuple(_same(token) for token in _TOKEN.findall(written))
        if not tokens:  # only in a voice's file that somebody else wrote
            continue
        said_for[tokens] = said
        known = counts.setdefault(tokens[0].lower(), [])
        if len(tokens) not in known:
            bisect.insort(known, len(tokens), key=lambda count: -count)
    return functools.partial(_said, said_for, counts)


def _said(said_for: dict[tuple[str, ...], str], counts: dict[str, list[int]], text: str) -> str:
    found = list(_TOKEN.finditer(text))
    tokens = [_same(token[0]) for token in found]
    small = [token.lower() for token in tokens]
    parts: list[str] = []
    at = index = 0
    while index < len(found):
        for count in counts.get(small[index], ()):
            last = index + count
            said = said_for.get(tuple(tokens[index:last]), said_for.get(tuple(small[index:last])))
            if said is None or last > len(found):
                continue
            start, end = found[index].start(), found[last - 1].end()
            if _FREE_START.match(text, start) and _FREE_END.match(text, end):
                parts += text[at:start], said
                at, index = end, last - 1
                break
        index += 1
    return "".join([*parts, text[at:]])


def _same(token: str) -> str:
    """A token in one form: white space, apostrophes, and letters with accents have several."""
    return " " if token.isspace() else unicodedata.normalize("NFC", token).replace("’", "'")
