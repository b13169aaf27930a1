"""Pronunciation lexicons: what is said for words as they are written, such as names.

A file has UTF-8 lines `written<TAB>said`; blank lines, and lines that begin with # and have no tab, are skipped.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from voxcpm_constants.bounds import MAX_TEXT_BYTES
from voxcpm_constants.errors import InputError, os_reason
from voxcpm_constants.json_files import read_bounded
from voxcpm_runtime.argument_types import path_argument, shown, valid_unicode, wrong_type
from voxcpm_runtime.text.segments import WIDE

Lexicon = Mapping[str, str]  # What is said, by what is written
LexiconSource = Lexicon | str | Path | Iterable[Lexicon | str | Path]

# VoxCPM's own input in braces is left alone, and Chinese and Japanese have no spaces between words.
_WORD = re.compile(rf"\{{[^{{}}]*\}}|[{WIDE}]|[^\W{WIDE}]+|[^\w\s]")


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
        try:
            lines = read_bounded(path, MAX_TEXT_BYTES).decode("utf-8-sig").splitlines()
        except OSError as error:
            raise InputError(f"lexicon {path}: cannot be read ({os_reason(error)})") from None
        except UnicodeDecodeError:
            raise InputError(f"lexicon {path}: expected UTF-8 text") from None
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
    entries[" ".join(written.split())] = " ".join(valid_unicode(said, where, "lexicon").split())


def pronounced(text: str, lexicon: Lexicon) -> str:
    """The text as the lexicon says it: whole words, the longest entry first.

    An entry in small letters applies to any case, any other one to its own case only.
    """
    patterns = _patterns(tuple(lexicon.items()))
    parts: list[str] = []
    at = 0
    for word in _WORD.finditer(text):
        for pattern, said in patterns.get(word[0].lower(), ()) if word.start() >= at else ():
            if found := pattern.match(text, word.start()):
                parts += text[at : word.start()], said
                at = found.end()
                break
    return "".join([*parts, text[at:]])


@functools.lru_cache(maxsize=16)
def _patterns(entries: tuple[tuple[str, str], ...]) -> dict[str, list[tuple[re.Pattern[str], str]]]:
    """The patterns of the entries and what they are read as, by their first word: longest first, exact case first."""
    by_word: dict[str, list[tuple[re.Pattern[str], str]]] = {}
    for written, said in sorted(entries, key=lambda entry: (-len(entry[0]), entry[0].islower())):
        ends_in_word = re.search(rf"[^\W{WIDE}]$", written)
        pattern = re.escape(written).replace(r"\ ", r"\s+") + (rf"(?![^\W{WIDE}])" if ends_in_word else "")
        flags = re.IGNORECASE if written == written.lower() else 0
        if first := _WORD.match(written):
            by_word.setdefault(first[0].lower(), []).append((re.compile(pattern, flags), said))
    return by_word
