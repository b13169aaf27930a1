"""Whether a text in Latin letters is English, by its words."""

from __future__ import annotations

import functools
import re
from pathlib import Path

_ENGLISH = """
the an of and to in is was are were it you he she we they that this have has had at by for from with on as not be will
would can my your his her our their its or but if about all any do every how me more no now only over say said see so
some than them there these us what when who yes
"""
_FUNCTION_WORDS = frozenset(_ENGLISH.split())
# Not a name, an abbreviation, a unit or a Roman number.
_ORDINARY_WORD = re.compile(
    r"(?<![\w.@/'’-])(?=[a-z]{3})(?![ivxlc]+\b)[a-z]*[aeiouy][a-z]*(?![\w@/'’]|\.\S|\. )"
)
_WORD = re.compile(r"(?<![\w.@/])[^\W\d_]+")
# With a letter of no English word, unlike those of café and naïve; a name may have it: Dvořák.
_FOREIGN_WORD = re.compile(
    r"(?<![\w.@/])(?=[^\W\d_A-Z])\w*[ßáãåæìíðòóõøùúþ\u0100-\u0151\u0154-\u024f\u1e00-\u1eff]\w*"
)
# With which short texts begin that have no ordinary word.
_FOREIGN_START = re.compile(
    r"(?i)^\W*(?:il y a|seite|kapitel|zimmer|saat|capítulo|página|chapitre|sayfa|oda|strona|pokój|trang|chương|phòng"
    r"|\d+ uhr)\b"
)


def may_be_english(text: str) -> bool:
    """False if most words are not common in English: "Ali 3 elma yedi.", but not "5 km"."""
    known = sum(word.lower() in _FUNCTION_WORDS for word in _WORD.findall(text))
    ordinary = [word for word in _ORDINARY_WORD.findall(text) if word not in _FUNCTION_WORDS]
    common = sum(not _common_words().isdisjoint((word, word.removesuffix("s"))) for word in ordinary)
    others = len(ordinary) - common + len(_FOREIGN_WORD.findall(text))
    return known + common >= others and not (_FOREIGN_START.match(text) and not known)


@functools.cache
def _common_words() -> frozenset[str]:
    """The words of `english_words.txt`, which has no plurals in -s."""
    lines = Path(__file__).with_name("english_words.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())
