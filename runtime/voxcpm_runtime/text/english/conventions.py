"""Notations with a conventional reading: seats and roads, verses, races, ISO times, coordinates, algebra.

These rules run before those of numbers, and mostly rewrite a notation to one that those handle: 12.30pm to 12:30pm.
Patterns with a plain replacement are in `tables.txt`.
"""

from __future__ import annotations

import re
from functools import partial

from voxcpm_runtime.text.english.numbers import DAYS, month_name
from voxcpm_runtime.text.english.vocabulary import (
    any_of,
    cardinal,
    digit_names,
    in_pairs,
    letter_by_letter,
    table_pairs,
    table_words,
)
from voxcpm_runtime.text.substitution import Replacement, Substitution, rules

_BOOK_OF = table_pairs("books of the Bible")
_BOOKS = any_of(
    {*_BOOK_OF, *map(str.capitalize, _BOOK_OF.values()), *table_words("other books of the Bible")}
)
_NTH = {"1": "first ", "2": "second ", "3": "third "}
_STATES = table_pairs("states")
_ABBREVIATED_STATES = table_pairs("abbreviated states")
_STATES_THAT_ARE_WORDS = table_words("states that are words")
_LETTERED = any_of(table_words("numbered with letters"))
_DAY = any_of(DAYS)
_MONTHS = table_pairs("months")
_MONTH = rf"({any_of([*_MONTHS.values(), *_MONTHS, 'Sept'])})\b"
_TERM = r"(?:\d{1,4}(?:[abnqrxyz]|k(?=\s[+=]))|a(?!\s[a-z]{2})|[b-z]|\d{1,6}(?:\.\d{1,4})?)(?:\^\d{1,3})?"
_OPERATOR = r"(?:\s[-+=*]\s|[+=](?!=)|(?<!\d[nxyz])(?<=[nxyz])-(?=\d))"
_OPERATORS = {"+": " plus ", "-": " minus ", "=": " equals ", "*": " times "}


def _digits_with_oh(match: re.Match[str]) -> str:
    return ", ".join(map(digit_names, match[0].strip().split("-"))).replace("zero", "oh")


def _algebra(match: re.Match[str], *, spelled: bool) -> str:
    """An expression with operators and variables in words; unchanged for a stutter, such as `a - a`."""
    if not (letters := re.findall("[a-z]", match[0])):
        return match[0]
    if len(set(letters)) == 1 and not re.search(r"\d", match[0]):
        return match[0]

    def said(part: re.Match[str]) -> str:
        if part[0].strip() in _OPERATORS:
            return _OPERATORS[part[0].strip()]
        name = letter_by_letter(part[2]) if spelled else part[2]
        return f"{cardinal(part[1])} {name}" if part[1] else name

    return re.sub(r"\s?[-+=*]\s?|(\d{0,4})([a-z])", said, match[0])


def _verse(match: re.Match[str], *, spelled: bool) -> str:
    book = _BOOK_OF.get(match["book"], match["book"]) if spelled else match["book"] + (match["dot"] or "")
    last = f" to {cardinal(match['last'])}" if match["last"] else ""
    parts = (in_pairs(part) if len(part) == 3 else cardinal(part) for part in match.group("chapter", "verse"))
    return f"{_NTH.get(match['nth'], '')}{book} {' '.join(parts)}{last}"


def _state(match: re.Match[str], *, spelled: bool) -> str:
    """A state's code after a city. OK, IN and other words need a preposition before the city, or a ZIP code after it.

    IN and OR are not words before a comma or period.
    """
    code, zip_code = match["code"], match["zip"]
    ends = code in ("IN", "OR") and match.string.startswith((",", "."), match.end())
    is_state = code not in _STATES_THAT_ARE_WORDS or zip_code or match["before"] or ends
    digits = f" {', '.join(map(digit_names, zip_code.strip().split('-')))}" if zip_code else ""
    return match["city"] + (_STATES[code] if spelled and is_state else code) + digits.replace("zero", "oh")


def conventions(spelled: bool, *, numbered: bool = True) -> tuple[Substitution, ...]:
    """Rules for notations with a conventional reading; voices of words keep names and letters as they are.

    numbered: whether the text has digits. Most sentences have none, and are read in half the time without those rules.
    """

    def said(letters: str) -> str:
        return letter_by_letter(letters) if spelled else letters

    def lettered(match: re.Match[str]) -> str:
        number = in_pairs(match[3]) if len(match[3]) == 3 else cardinal(match[3])
        return f"{match[1] or said(match[2])} {number} {said(match[4])}"

    numbers: dict[str, Replacement] = {
        # ZIP codes and telephone numbers, before their parts are read as hyphenated numbers.
        r"(?<![\w-])(?:\d{5}|\d{3}-\d\d)-\d{4}(?![\w-])": _digits_with_oh,
        r"(?<![\w-])(?:1-\d{3}|8(?:00|88|77|66|55))(?:-\d{3})?-"
        r"(?=(?:(?:[A-Z]{2,10}|\d)-){0,3}[A-Z]{2,10}(?![\w-]))": (
            lambda match: ", ".join(map(digit_names, re.findall(r"\d+", match[0]))) + ", "
        ),
        rf"\b(?:(?P<nth>[123])\s)?(?P<book>{_BOOKS})(?P<dot>\.)?\s(?P<chapter>\d{{1,3}}):(?P<verse>\d{{1,3}})"
        r"(?:[–-](?P<last>\d{1,3}))?(?![\w:])": partial(_verse, spelled=spelled),
        rf"(?:(?i:\b({_LETTERED}s?(?:\s(?:is|was|number|no\.))?))\s"
        r"|(?<![\w-])([A-Z]{1,3})-)(\d{1,4})([A-Z])(?!\w)": lettered,
        r"(?<![\w.])802\.(\d\d?)([a-z]{0,2})(?!\w)": lambda match: (
            f"eight oh two dot {cardinal(match[1])} {said(match[2])}".rstrip()
        ),
        **table_pairs("plainer forms"),
    }
    words: dict[str, Replacement] = {
        rf"\b({_DAY})\.?\s?[-–]\s?({_DAY})\b(?:\.(?=[,;)]|\s[a-z\d]))?(?!-)": lambda match: (
            f"{DAYS[match[1]]} to {DAYS[match[2]]}"
        ),
        rf"\b{_DAY}\.?(?=,?\s(?:(?:and|or|to|through)\s)?{_DAY}\b)": lambda match: DAYS[match[0].rstrip(".")],
        rf"(?<=day)(,?\s(?:and|or|to|through)\s)({_DAY})\b(?:\.(?=\s[a-z\d]))?": lambda match: (
            match[1] + DAYS[match[2]]
        ),
        rf"\b{_DAY}\.?(?=\s\d{{1,2}}(?::\d\d)?\s?(?:[-–]|[AaPp]\.?[Mm]\b))"
        r"|\b(?:Mon|Tues?|Wed|Thurs?|Fri)\.(?=\s?[a-z\d,])|(?<=\b[Oo]n )(?:Sat|Sun)\.(?=\s?[a-z\d,])": lambda match: (
            DAYS[match[0].rstrip(".")]
        ),
        rf"\b{_MONTH}\.?\s?[-–]\s?{_MONTH}(?:\.(?=[,;)]|\s[a-z\d]))?(?!-)": lambda match: (
            f"{month_name(match[1])} to {month_name(match[2])}"
        ),
        rf"(?<![\w'.,$/-])(?!a - [fz]\b){_TERM}(?:{_OPERATOR}{_TERM}){{1,8}}(?![\w'/]|[.,-]\w)": partial(
            _algebra, spelled=spelled
        ),
    }
    # Before the ZIP code becomes words.
    state: dict[str, Replacement] = {
        r"(?P<city>(?P<before>\b(?:and|in|of|from|to|near|at|not|outside|around|for)\s)?\b[A-Z][a-z]{1,20}"
        rf"(?:\s[A-Z][a-z]{{1,20}}){{0,2}},\s)(?P<code>{any_of(_STATES)})(?P<zip>\s\d{{5}}(?:-\d{{4}})?)?"
        r"(?![\w'-])": partial(_state, spelled=spelled),
    }
    names: dict[str, Replacement] = {
        **table_pairs("plainer forms of names"),
        rf"(?:(?<=[a-z], )|(?<=\([DRI] ))({any_of(_ABBREVIATED_STATES)})\.": lambda match: (
            _ABBREVIATED_STATES[match[1]]
        ),
    }
    return rules(state | (numbers if numbered else {}) | words | (names if spelled else {}))
