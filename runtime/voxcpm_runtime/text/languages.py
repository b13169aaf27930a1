"""Whether a text in Latin letters is English, by its function words and letters, or by a list of common words."""

from __future__ import annotations

import functools
import re
from pathlib import Path

# Words that are common in their language and rare in English; names have some of them, such as De Niro and Los Angeles.
_ENGLISH = """
the an of and to in is was are were I it you he she we they that this have has had at by for from with on as not be
will would can my your his her our their its or but if about all any do every how me more no now only over say said see
so some than them there these us what when who yes
"""
_OTHERS = """
le les des du une est et il elle je nous vous dans avec sur pas qui que c'est j'ai au aux ans sont ont heures à y
el los las una de en con por para tiene tengo hay son del al hace quiero necesito cuesta
das und ist ein eine nicht mit für von dem ich er sie wir haben habe kostet zu sind es bis im auf uhr der
den unter hat kommt bitte
lo gli di che ho ha sono per della anni alle abbiamo costa
os da em tem tenho uma eu temos custa
het een van ik niet voor zijn heeft
ma jest nie ona ono mam lat kosztuje
bu bir ve bugün saat benim onun lira
jag har hon och det koster kostar inte klockan jeg ikke han kroner
minulla ei maksaa kello euroa ez egy hogy
imam ima je se mi godina korun ani lei
saya punya dia anak harga ribu tahun orang
seite kapitel zimmer capítulo página chapitre sayfa oda strona pokój trang chương phòng
"""
_FUNCTION_WORDS = {
    **dict.fromkeys(_OTHERS.split(), -1),
    **dict.fromkeys(_ENGLISH.lower().split(), 1),
}
_WORD = re.compile(r"(?<![\w.@/])[^\W\d_]+(?:['’][^\W\d_]+)*")
# Not a name, an abbreviation, a unit or a Roman number.
_ORDINARY_WORD = re.compile(
    r"(?<![\w.@/'’-])(?=[a-z]{3})(?![ivxlc]+\b)[a-z]*[aeiouy][a-z]*(?![\w@/'’]|\.\S|\. )"
)
# Of no English word, unlike those of café and naïve
_ANOTHER_LETTER = re.compile("[ßáãåæìíðòóõøùúþ\u0100-\u0151\u0154-\u024f\u1e00-\u1eff]")
_SHORT = 4  # Words of a text in which one function word is enough, unless it may be a variable
_PROSE = 8  # At least one of so many words is a function word in prose; a list of names has some by chance


def may_be_english(text: str) -> bool:
    """False if words of other languages outnumber the English ones: by function words and letters, or without any of
    these, as in "Ali 3 elma yedi.", by the list of common words.
    """
    words = [word.replace("’", "'") for word in _WORD.findall(text) if word != "i"]  # "and" in Polish
    weights = [_weight(word, is_first=index == 0) for index, word in enumerate(words)]
    if not any(weights):
        ordinary = _ORDINARY_WORD.findall(text)
        common = sum(not _common_words().isdisjoint((word, word.removesuffix("s"))) for word in ordinary)
        return not ordinary or 2 * common > len(ordinary)
    others = [word for word, weight in zip(words, weights, strict=True) if weight < 0]
    several = min(weights, default=0) < -1 or len(others) > 1
    is_enough = _PROSE * len(others) >= len(words) if several else len(words) <= _SHORT and others != ["y"]
    return not is_enough or sum(weights) >= 0


def _weight(word: str, *, is_first: bool) -> int:
    """1 for an English function word, -1 for another's, -2 for another letter; a name has none: De Niro, Dvořák."""
    weight = _FUNCTION_WORDS.get(word.lower(), 0)
    if word[0].isupper():
        return weight if weight > 0 or is_first or word == "Uhr" else 0
    return -2 if _ANOTHER_LETTER.search(word) else weight


@functools.cache
def _common_words() -> frozenset[str]:
    """The words of `english_words.txt`, which has no plurals in -s."""
    lines = Path(__file__).with_name("english_words.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())
