"""Rules for abbreviations, Roman numerals, list markers and addresses."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable

from voxcpm_runtime.text.english.numbers import DAYS, month_name
from voxcpm_runtime.text.english.vocabulary import (
    any_of,
    cardinal,
    digit_names,
    has_vowel,
    in_pairs,
    is_sayable,
    letter_by_letter,
    ordinal,
    said_acronym,
    table_pairs,
    table_words,
)
from voxcpm_runtime.text.substitution import Substitution, rules

_SYMBOL_PHRASES = table_pairs("phrases with symbols")
_PHRASES = _SYMBOL_PHRASES | table_pairs("phrases")
_MAY_BE_LAST = table_words("phrases that may be last")
_NOT_FIRST = table_words("after company names")
_TITLES = table_pairs("titles")
_TITLES_IN_ONE_CASE = {
    **{title.upper(): _TITLES[title] for title in table_words("titles in capitals")},
    **{title.lower(): _TITLES[title] for title in table_words("titles in small letters")},
}
_NUMBERED_WITHOUT_DOT = table_pairs("before numbers, without a dot")
_BEFORE_NUMBERS = _NUMBERED_WITHOUT_DOT | table_pairs("before numbers")
_ANSWERS = table_words("before an answer")
_NUMBERED = any_of(table_words("numbered things"))
_MONARCHS = any_of(table_words("monarchs"))
_MONTHS_ALONE = any_of(["Feb", "Mar", "Apr", "Jun", "Jul", "Aug", "Sep", "Sept", "Oct", "Nov", "Dec"])
_STREET = rf"(?!{any_of(DAYS.values())})(?:[A-Z][a-z]+\s){{1,2}}"
_DIGIT_NAMES = "(?:plus|zero|one|two|three|four|five|six|seven|eight|nine)"
_BEFORE_MONTHS = "|".join(rf"(?<=\b{word} )" for word in ("in", "In", "and", "since", "next", "last"))
_ONE = r"(?<=[Ww]ar )I|I(?=\s*(?:[^\w\s'\"]|$)|\sof\b)"
_PRONOUN_VERBS = any_of(table_words("verbs after the pronoun"))
_FIRST = rf"I(?=\s(?!{_PRONOUN_VERBS}\b)[a-z])"
_ROMAN_DIGITS = (
    " M MM MMM", " C CC CCC CD D DC DCC DCCC CM", " X XX XXX XL L LX LXX LXXX XC", " I II III IV V VI VII VIII IX",
)  # fmt: skip
_ROMAN = {
    "".join(digits): str(value)
    for value, digits in enumerate(itertools.product(*(row.split(" ") for row in _ROMAN_DIGITS)))
}
"""Roman numerals up to 3999 → their values."""


def _numeral(say: Callable[[str], str]) -> Callable[[re.Match[str]], str]:
    """A replacement function for Roman numerals, which keeps the words before them. Other words are unchanged."""

    def said(match: re.Match[str]) -> str:
        if (value := _ROMAN.get(match["numeral"].upper())) is None:
            return match[0]
        return f"{match['before']} {say(value)}" if match["before"] else say(value)

    return said


def _numeral_sign(match: re.Match[str]) -> str:
    """The signs of a Roman numeral as digits; those of a monarch are left to the rules for letters."""
    letters = unicodedata.normalize("NFKC", match["signs"]).upper()
    return f"{match['monarch']}{letters}" if match["monarch"] else _ROMAN.get(letters, letters)


def _first(match: re.Match[str]) -> str:
    """The numeral I before a verb, unless the sentence has other words of the first person."""
    context = f"{match.string[: match.start('numeral')][-200:]} {match.string[match.end() :][:200]}"
    if re.search(r"\b(?:I|[Mm]e|[Mm]y|[Ww]e)\b", re.sub(rf"\b{_MONARCHS}\sI\b", "", context)):
        return match[0]
    return f"{match['before']} {'one' if match['title'] is None else 'the first'}"


def _phrase(match: re.Match[str]) -> str:
    phrase = match[0]
    after = re.match(r"\s+([A-Z][a-z]+)", match.string[match.end() : match.end() + 40])
    # Albany, N.Y. Last spring …, but the N.Y. Times.
    state = phrase[0].isupper() and phrase.count(".") > 1 and match.string.endswith(", ", 0, match.start())
    ends = (phrase in _MAY_BE_LAST or state) and after is not None and after[1] not in _NOT_FIRST
    return f"{_PHRASES[phrase]}{'.' if ends else ' '}"


def _before_number(match: re.Match[str]) -> str:
    return f"{_BEFORE_NUMBERS[match['word'].lower()]} "


def _number_sign(match: re.Match[str]) -> str:
    before = re.search(r"(\w+)\s$", match.string[: match.start()][-20:])
    answer = before is None or before[1].lower() in _ANSWERS
    return match[0] if answer and match[0][0] == "n" else "number "


def _month_alone(match: re.Match[str]) -> str:
    stop = "." if re.match(r"\s+[A-Z]", match.string[match.end() : match.end() + 40]) else ""
    return month_name(match[0]) + stop


def list_markers(spelled: bool) -> tuple[Substitution, ...]:
    """Rules for a marker at the beginning of a sentence: 1., a), (b), iv."""

    def said(match: re.Match[str]) -> str:
        mark, stop = match["mark"], "." if match["stop"] == "." else ","
        value = (
            mark if mark.isdecimal() else _ROMAN.get(mark.upper()) if len(mark) > 1 or mark in "ivx" else None
        )
        if value or spelled:
            return f"{cardinal(value) if value else letter_by_letter(mark)}{stop} "
        return match[0]

    return rules({r"^\s*\(?(?P<mark>\d{1,2}|[A-Za-z](?=\))|[ivx]{2,5})(?P<stop>\)|\.(?=\s+\w))\s*": said})


_BEFORE_NUMBERS_RULES = rules(
    {
        # Digits of telephone numbers are already words here.
        rf"(?i)\btel\.:?\s?(?=\+|\d|{_DIGIT_NAMES}\b)": "telephone ",
        r"\bno\.\s?(?=\d)|\bN(?:o|O)\.\s?(?=\d|[IVXLC]{2,8}\b)": _number_sign,
        r"(?<=\w\s)No\s(?=\d)": "number ",
        rf"(?<![\w.])(?P<word>(?i:{any_of(_BEFORE_NUMBERS)}))\.\s?(?=\d|[IVXLC]{{2,8}}\b|[VX]\b)": _before_number,
        rf"(?i)\b(?P<word>{any_of(_NUMBERED_WITHOUT_DOT)})\s(?=\d)": _before_number,
        r"\bArt\.\s?(?=\d)": "article ",
    }
)
_NAME_RULES = rules(
    {
        # St. and Dr. after a name are not titles: I live on Oak Dr. Turn left.
        rf"(?P<name>\b(?:(?:on|along|down|off)\s|\d\s){_STREET})Dr(?=\.\s+[A-Z])": r"\g<name>drive",
        r"(?<=[a-z]\s)St\.(?!\s?[A-Z])|(?<=\w\s)St\.?(?=,|\s*$)": "street",
        r"(?<=[a-z]\s)Dr\.(?!\s?[A-Z])|(?<=\w\s)Dr\.?(?=,|\s*$)": "drive",
        rf"\b({any_of(_TITLES)})\b(?:\.|(?=\s[A-Z][a-z]))": lambda match: _TITLES[match[1]],
        rf"\b({any_of(_TITLES_IN_ONE_CASE)})\.(?=\s?[A-Za-z])": lambda match: _TITLES_IN_ONE_CASE[match[1]],
    }
)
# Jan is also a name.
_MONTHS = rules({rf"\b{_MONTHS_ALONE}\.|\bJan\.(?=\s*[a-z\d,–-])|(?:{_BEFORE_MONTHS})Jan\.": _month_alone})


def abbreviations(spelled: bool) -> tuple[Substitution, ...]:
    """Rules for abbreviations with a fixed reading, and for those whose neighbours decide."""
    phrases = _PHRASES if spelled else _SYMBOL_PHRASES
    return (
        *rules({rf"(?<![\w.&'/]){any_of(phrases)}(?![\w'&/]|\.\w)": _phrase}),
        *_BEFORE_NUMBERS_RULES,
        *(_NAME_RULES if spelled else ()),
        *_MONTHS,
    )


NUMERAL_SIGNS = rules({rf"(?P<monarch>\b(?:{_MONARCHS})\s)?(?P<signs>[\u2160-\u217f]+)": _numeral_sign})
"""Roman numerals as signs of their own, such as Ⅳ."""


ROMAN_NUMERALS = rules(
    {
        rf"(?i)\b(?P<before>{_NUMBERED})\s(?P<numeral>[ivxlc]{{2,8}})\b(?!')": _numeral(cardinal),
        rf"(?<!\bthe )\b(?P<before>(?P<title>{_MONARCHS})|(?=[A-Z])(?i:{_NUMBERED}))\s(?P<numeral>{_FIRST})": _first,
        r"\b(?P<before>[Pp]ages?)\s(?P<numeral>[ivxlc])\b": _numeral(cardinal),
        r"\b(?P<before>[Pp]ages\s[\w-]{3,20}\s(?:to|and))\s(?P<numeral>[ivxlc]{1,8})\b": _numeral(cardinal),
        # A single letter is a numeral only after a capital: Part I, but the part I like.
        rf"\b(?P<before>(?=[A-Z])(?i:{_NUMBERED}))\s(?P<numeral>[VX]|{_ONE})\b(?!')": _numeral(cardinal),
        r"(?P<before>)(?<![\w)])\((?P<numeral>[ivx]{1,4})\)": _numeral(lambda value: f" {cardinal(value)}, "),
        rf"\b(?P<before>{_MONARCHS})\s(?P<numeral>[IVX]{{2,6}}|[VX]|I(?=[;:)!?]|\s\(|\.?\s*$))\b": _numeral(
            lambda value: f"the {ordinal(value)}"
        ),
        r"\b(?P<before>[A-Z][a-z]+)\s(?P<numeral>[IVX]{2,6})\b": _numeral(cardinal),
        r"(?P<before>)\b(?P<numeral>[IVXLCDM]{5,15})\b": _numeral(
            lambda value: in_pairs(value) if len(value) == 4 else cardinal(value)
        ),
    }
)


_MARKS = table_pairs("marks in addresses")
_DOMAINS = any_of(table_words("top-level domains"))
_WORDY_DOMAINS = any_of(table_words("top-level domains that are words"))
_TOP_DOMAIN = rf"(?:{_DOMAINS}|{_WORDY_DOMAINS}(?=/\w))"
_FILES = any_of(table_words("file extensions"))
# Bounded repetitions keep the search linear on long lines without an address.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,8}}"
_TAIL = r"(?::\d{1,5})?(?:[/?#][\w./?=&#%~+:@-]{0,500})?"


def addresses(spelled: bool) -> tuple[Substitution, ...]:
    """Rules for addresses, from the most to the least specific form."""

    def piece(text: str) -> str:
        if text.isdigit():
            return cardinal(text) if len(text) <= 2 else digit_names(text)  # as in page12
        if not text.isalpha() or not text.isascii():
            return _MARKS.get(text, text)
        return _piece_spelled(text) if spelled else text

    def address(match: re.Match[str]) -> str:
        # Trailing punctuation belongs to the sentence; a trailing slash is not read.
        whole = match["address"].rstrip(".,?:-")
        said = map(piece, re.findall(r"[A-Za-z]+|\d+|[^\W_]|[\W_]", whole.rstrip("/")))
        return f" {' '.join(said)} {match['address'][len(whole) :]}"

    return rules(
        {
            r"<(?:mailto:)?([^<>\s]{3,500})>": r" \1 ",
            rf"(?<![\w.+-])(?P<address>[A-Za-z0-9][\w.+-]{{0,63}}@{_HOST})": address,
            rf"(?i)(?<!\w)(?:https?|ftp|file)://+(?P<address>{_HOST}{_TAIL})": address,
            rf"(?<![\w.@-])(?P<address>{_LABEL}(?:\.{_LABEL}){{0,3}}\.{_TOP_DOMAIN}{_TAIL})(?![\w@]|\.\w)": address,
            rf"(?<![\w.])(?P<address>[\w-]{{0,80}}\.{_FILES})(?![\w@]|\.\w)": address,
            r"(?<![\w.~/])(?P<address>(?:[A-Za-z]:|~)(?:[/\\][\w.-]{1,80}){1,30}|(?:[/\\][\w.-]{1,80}){2,30})": address,
            r"(?<![\w&])(?P<mark>[#@])(?P<words>[A-Za-z]\w{0,80})": _tag,
        }
    )


def _piece_spelled(piece: str) -> str:
    if said := said_acronym(piece.upper()):
        return said
    # Up to three letters may be an abbreviation, even with a vowel.
    is_word = is_sayable(piece) or (len(piece) > 3 and has_vowel(piece))
    return piece.lower() if is_word else letter_by_letter(piece)


def _tag(match: re.Match[str]) -> str:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", match["words"])
    return f" {'hashtag' if match['mark'] == '#' else 'at'} {' '.join(words)} "
