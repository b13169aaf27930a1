"""The tables of English, and the names of numbers (from the library `num2words`), letters and acronyms.

Numbers are strings of ASCII digits, to keep leading zeros.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from configparser import ConfigParser
from pathlib import Path

_TABLES = ConfigParser(delimiters="\t", comment_prefixes=("# ",), allow_no_value=True, interpolation=None)
_TABLES.optionxform = str  # type: ignore[assignment, method-assign] # Case-sensitive keys
_TABLES.read(Path(__file__).with_name("tables.txt"), encoding="utf-8")


def table_words(name: str) -> frozenset[str]:
    """A table of words separated by white space."""
    return frozenset(" ".join(_TABLES[name]).split())


def table_rows(name: str) -> dict[str, list[str]]:
    """A table of tab-separated columns: the first one → the others."""
    return {key: columns.split("\t") for key, columns in _TABLES[name].items()}


def table_pairs(name: str) -> dict[str, str]:
    """A table of two columns: written → spoken."""
    return dict(_TABLES[name])


def any_of(words: Iterable[str]) -> str:
    """A non-capturing group that matches any of the words, longest first."""
    return "(?:" + "|".join(map(re.escape, sorted(sorted(words), key=len, reverse=True))) + ")"


_RESPELLED = table_pairs("respelled acronyms")
_AS_WORDS = table_words("acronyms said as words")
BY_LETTER = table_words("acronyms said by letter")
WORDS_IN_CAPITALS = table_words("words in capitals")
_LETTER_NAMES = table_pairs("letters")
_MAX_DIGITS = 36  # Longer numbers are read digit by digit: few people know names beyond decillions
_SAYABLE = re.compile(
    r"""
    (?:sch|scr|shr|spl|spr|squ|str|thr|ch?[lr]?|ph[lr]?|qu|rh|s[chklmnptw]|sh|t[hrw]|wh|wr|gh|gn|kn|
       [bfgkp][lr]|d[rw]|[bcdfghjklmnprstvwxyz])?
    [aeiouy]{1,3}
    (?:[bcdfghjklmnpqrstvwxz]{1,3}[aeiouy]{1,3})*
    (?:[lmnr]?(?:[bcdfgkmnpstvxz]|th|sh|ch|ck|hn|ll|ss|ff|zz|st|ct|ft|pt|xt|sk|sp|ng|nk|ght|ngth|tch|ld|lth|w|h|l|r)?s?)
    """,
    re.VERBOSE | re.IGNORECASE,
)


@functools.lru_cache(4096)
def _name(number: str, form: str = "cardinal") -> str:
    """The number as American English says it."""
    if len(number) > _MAX_DIGITS:
        return digit_names(number)
    # Imported lazily, because most texts have no numbers.
    from num2words import num2words

    return str(num2words(int(number), to=form)).replace(" and ", " ").replace(",", "")


def digit_names(number: str) -> str:
    """The digits one by one: "nine one one"."""
    return " ".join(_name(digit) for digit in number)


def cardinal(number: str) -> str:
    """The number in words; it may have commas. With a leading zero it is read digit by digit, as in agent 007."""
    number = number.replace(",", "")
    return digit_names(number) if len(number) > 1 and number[0] == "0" else _name(number)


def ordinal(number: str) -> str:
    """The ordinal number in words: "twenty-first"."""
    return _name(number.replace(",", ""), "ordinal")


def decimal(number: str) -> str:
    """A number with or without a decimal point: "three point one four"."""
    whole, point, part = number.partition(".")
    words = [cardinal(whole)] if whole else []
    return " ".join([*words, "point", digit_names(part)] if point else words)


def in_pairs(number: str) -> str:
    """Three or four digits, as in years and resolutions: "nineteen oh five", "ten eighty", "two thousand five"."""
    return digit_names(number) if number[0] == "0" else _name(number, "year").replace("oh-", "oh ")


def plural(words: str) -> str:
    """The plural, for decades and letters: "nineteen twenties", "esses"."""
    if re.search("[^aeiou]y$", words):
        return f"{words[:-1]}ies"
    return f"{words}es" if words.endswith(("s", "x", "z", "ch", "sh")) else f"{words}s"


def letter_by_letter(letters: str, ending: str = "") -> str:
    """The names of ASCII letters: "eff bee eye". ending: "", "s" for a plural, or "'s"."""
    names = " ".join(_LETTER_NAMES[letter] for letter in letters.lower())
    return plural(names) if ending == "s" else names + ending


def said_acronym(capitals: str, ending: str = "") -> str | None:
    """A known acronym in words; None for others. ending: "", "s" or "'s"."""
    if capitals in _RESPELLED:
        return _RESPELLED[capitals] + ending
    if capitals in _AS_WORDS:
        return capitals.lower() + ending
    return letter_by_letter(capitals, ending) if capitals in BY_LETTER else None


def is_sayable(word: str) -> bool:
    """Whether the letters are pronounceable as a word: "nasa", but not "fb" or "html"."""
    if len(word) < 3:
        return word.upper() in WORDS_IN_CAPITALS
    return len(word) <= 40 and _SAYABLE.fullmatch(word) is not None


def has_vowel(word: str) -> bool:
    """Whether the word has a vowel, y included."""
    return re.search("[AEIOUYaeiouy]", word) is not None
