"""Abbreviations, Roman numerals, list markers and fixed phrases in words."""

from __future__ import annotations

import re

from voxcpm_runtime.english.dates import month_name, year
from voxcpm_runtime.english.names import cardinal, letter_by_letter, ordinal
from voxcpm_runtime.text.substitutions import Substitution, any_of, rules, word_set

_SYMBOL_PHRASES = {
    "24/7": "twenty-four seven", "9/11": "nine eleven", "50/50": "fifty fifty", "w/o": "without", "w/": "with",
    "c/o": "care of", "C++": "C plus plus", "C#": "C sharp", "F#": "F sharp",
}  # fmt: skip
"""Phrases with numbers or symbols, which every voice needs in words."""
_PHRASES = {
    **_SYMBOL_PHRASES, "n/a": "en ay", "N/A": "en ay", "'n'": "and", "AT&T": "ay tee and tee", "A/B": "ay bee",
    "a.k.a.": "also known as", "p.s.": "pee ess", "e.g.": "for example", "e.g": "for example", "i.e.": "that is",
    "i.e": "that is", "etc.": "et cetera", "etc": "et cetera", "et al.": "et al", "vs.": "versus", "vs": "versus",
    "cf.": "compare", "viz.": "namely", "approx.": "approximately", "Ph.D.": "pee aitch dee",
    "Ph.D": "pee aitch dee", "Ph.Ds": "pee aitch dees", "PhD": "pee aitch dee", "PhDs": "pee aitch dees",
    "est.": "established", "dept.": "department", "Dept.": "department", "govt.": "government", "ed.": "edition",
    "misc.": "miscellaneous", "min.": "minimum", "max.": "maximum", "incl.": "including", "nvm": "never mind",
    "Inc.": "incorporated", "Ltd.": "limited", "Corp.": "corporation", "Co.": "company", "Bros.": "brothers",
    "Assn.": "association", "Univ.": "university", "Jr.": "junior", "Sr.": "senior", "Esq.": "esquire",
    "tsp.": "teaspoon", "tbsp.": "tablespoon", "Ave.": "avenue", "Blvd.": "boulevard", "Rd.": "road",
    "Hwy.": "highway", "Bldg.": "building",
}  # fmt: skip
_MAY_BE_LAST = word_set("a.k.a. p.s. etc. et al. Inc. Ltd. Corp. Co. Jr. Sr. Esq. Ave. Blvd. Rd. Hwy.")
"""Phrases whose dot also ends the sentence before a word with a capital."""
_NOT_FIRST = word_set(
    """Avenue Ave Blvd Boulevard Bridge Building Chairman Chief Company Day Director Drive Elementary Employees High
    Inc Jr Junior Ltd Limited Memorial President Road School Senior Sr Street University"""
)
"""Words with a capital that continue such a name: Ford Motor Co. Chairman."""
_TITLES = {
    "Mr": "mister", "Mrs": "missus", "Ms": "miz", "Messrs": "messrs", "Mme": "madame", "Dr": "doctor", "St": "saint",
    "Mt": "mount", "Ft": "fort", "Prof": "professor", "Gen": "general", "Col": "colonel", "Capt": "captain",
    "Cpt": "captain", "Maj": "major", "Lt": "lieutenant", "Sgt": "sergeant", "Cpl": "corporal", "Cmdr": "commander",
    "Adm": "admiral", "Rev": "reverend", "Hon": "honorable", "Gov": "governor", "Sen": "senator",
    "Rep": "representative", "Pres": "president", "Insp": "inspector", "Supt": "superintendent",
}  # fmt: skip
_TITLES_IN_ONE_CASE = {
    **{title.upper(): _TITLES[title] for title in ("Mr", "Mrs", "Ms", "Dr", "Prof", "Capt", "Lt", "Sgt")},
    **{title.lower(): _TITLES[title] for title in ("Mr", "Mrs", "Dr", "Prof")},
}
"""Titles in a text of capitals, or of small letters; always with their dot."""
_AFTER_NAMES = {"St": "street", "Dr": "drive"}
"""Titles that mean something else after a name."""
_NUMBERED_WITHOUT_DOT = {"pp": "pages", "vol": "volume", "vols": "volumes", "fig": "figure"}
_BEFORE_NUMBERS = {
    "nos": "numbers", "p": "page", "ch": "chapter", "chap": "chapter", "eq": "equation", "eqs": "equations",
    "sec": "section", "ver": "version", "ca": "circa", "c": "circa", "pt": "part", "par": "paragraph",
    "apt": "apartment", **_NUMBERED_WITHOUT_DOT,
}  # fmt: skip
"""Abbreviations before a number; without the dot, many of these are words."""
_ANSWERS = word_set("and answer answered mean means or replied said say saying says voted was")
"""Words before a "no." that is an answer."""
_MONTHS_ALONE = word_set("Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec")
_DAYS_OF_THE_WEEK = word_set("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_STREET = rf"(?!{any_of(_DAYS_OF_THE_WEEK)})(?:[A-Z][a-z]+\s){{1,2}}"
_BEFORE_MONTHS = "|".join(rf"(?<=\b{word} )" for word in ("in", "In", "and", "since", "next", "last"))
_DIGITS = "plus zero one two three four five six seven eight nine".split()  # noqa: SIM905
_ONE = r"(?<=[Ww]ar )I|I(?=\s*(?:[^\w\s'\"]|$)|\sof\b)"
_NUMBERED = any_of(
    word_set(
        """act amendment appendix article book bowl canto chapter class episode figure grade lesson level mark part
        phase scene season section stage table title type unit vol vol. volume war"""
    )
)
_MONARCHS = any_of(
    word_set(
        """Alexander Alfonso Benedict Carl Catherine Charles Christian Clement Edward Elizabeth Ferdinand Francis
        Franz Frederick George Gregory Gustav Haakon Harald Henry Innocent Ivan James John Joseph Juan Julius
        Leo Leopold Louis Margaret Mary Maximilian Napoleon Nicholas Otto Paul Pedro Peter Philip Pius Ptolemy
        Ramses Richard Robert Rudolf Urban Victor Wilhelm William Xerxes"""
    )
)
_ROMAN = re.compile(
    r"(?=[IVXLCDM])M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})", re.IGNORECASE
)
_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100, "d": 500, "m": 1000}


def _roman_value(numeral: str) -> str | None:
    """The value of a Roman numeral, as digits; None for other letters."""
    if not _ROMAN.fullmatch(numeral):
        return None
    values = [_VALUES[letter] for letter in numeral.lower()]
    # A smaller value before a larger one is subtracted.
    pairs = zip(values, [*values[1:], 0], strict=True)
    return str(sum(-value if value < after else value for value, after in pairs))


def _numbered(found: re.Match[str]) -> str:
    value, before = _roman_value(found["numeral"]), found["before"]
    return found[0] if value is None else f"{before} {cardinal(value)}{'' if before else ', '}"


def _reign(found: re.Match[str]) -> str:
    value = _roman_value(found["numeral"])
    return found[0] if value is None else f"{found['before']} the {ordinal(value)}"


def _roman_year(found: re.Match[str]) -> str:
    value = _roman_value(found[0])
    return found[0] if value is None else year(value) if len(value) == 4 else cardinal(value)


def _phrase(found: re.Match[str]) -> str:
    phrase = found[0]
    after = re.match(r"\s+([A-Z][a-z]+)", found.string[found.end() : found.end() + 40])
    ends = phrase in _MAY_BE_LAST and after is not None and after[1] not in _NOT_FIRST
    return f"{_PHRASES[phrase]}{'.' if ends else ' '}"


def _before_number(found: re.Match[str]) -> str:
    return f"{_BEFORE_NUMBERS[found['word'].lower()]} "


def _number_sign(found: re.Match[str]) -> str:
    before = re.search(r"(\w+)\s$", found.string[: found.start()][-20:])
    answer = before is None or before[1].lower() in _ANSWERS
    return found[0] if answer and found[0][0] == "n" else "number "


def _month_alone(found: re.Match[str]) -> str:
    stop = "." if re.match(r"\s+[A-Z]", found.string[found.end() : found.end() + 40]) else ""
    return month_name(found[0]) + stop


def list_markers(spelled: bool) -> tuple[Substitution, ...]:
    """Rules for a marker at the beginning of a sentence: 1., a), (b), iv."""

    def said(found: re.Match[str]) -> str:
        mark, stop = found["mark"], "." if found["stop"] == "." else ","
        value = mark if mark.isdecimal() else _roman_value(mark) if len(mark) > 1 or mark in "ivx" else None
        if value or spelled:
            return f"{cardinal(value) if value else letter_by_letter(mark)}{stop} "
        return found[0]

    return rules((r"^\s*\(?(?P<mark>\d{1,2}|[A-Za-z](?=\))|[ivx]{2,5})(?P<stop>\)|\.(?=\s+\w))\s*", said))


_BESIDE_NUMBERS = rules(
    # The digits of telephone numbers are words by now.
    (rf"(?i)\btel\.:?\s?(?=\+|\d|{any_of(_DIGITS)}\b)", "telephone "),
    (r"\bno\.\s?(?=\d)|\bN(?:o|O)\.\s?(?=\d|[IVXLC]{2,8}\b)", _number_sign),
    (r"(?<=\w\s)No\s(?=\d)", "number "),
    (
        r"\b(?:[Ff]igs|[Aa]rts)\.\s?(?=\d{1,3}[a-z]?(?:\s?[-–,&]|\s(?:and|to)\b))",
        lambda found: "figures " if found[0][0] in "Ff" else "articles ",
    ),
    (rf"\b(?P<word>(?i:{any_of(_BEFORE_NUMBERS)}))\.\s?(?=\d|[IVXLC]{{2,8}}\b|[VX]\b)", _before_number),
    (rf"(?i)\b(?P<word>{any_of(_NUMBERED_WITHOUT_DOT)})\s(?=\d)", _before_number),
    (r"\bArt\.\s?(?=\d)", "article "),
)
_BESIDE_NAMES = rules(
    # I live on Oak Dr. Turn left.
    (rf"(?P<name>\b(?:(?:on|along|down|off)\s|\d\s){_STREET})Dr(?=\.\s+[A-Z])", r"\g<name>drive"),
    (
        rf"(?<=[a-z]\s){any_of(_AFTER_NAMES)}\.(?!\s?[A-Z])|(?<=\w\s){any_of(_AFTER_NAMES)}\.?(?=,|\s*$)",
        lambda found: _AFTER_NAMES[found[0].rstrip(".")],
    ),
    (rf"\b{any_of(_TITLES)}\b(?:\.|(?=\s[A-Z][a-z]))", lambda found: _TITLES[found[0].rstrip(".")]),
    (rf"\b{any_of(_TITLES_IN_ONE_CASE)}\.(?=\s?[A-Za-z])", lambda found: _TITLES_IN_ONE_CASE[found[0][:-1]]),
)
# Jan is a name, too.
_MONTHS = rules(
    (rf"\b{any_of(_MONTHS_ALONE)}\.|\bJan\.(?=\s*[a-z\d,–-])|(?:{_BEFORE_MONTHS})Jan\.", _month_alone)
)


def abbreviations(spelled: bool) -> tuple[Substitution, ...]:
    """Rules for what is read in one way wherever it stands, and for what the words next to it decide."""
    phrases = _PHRASES if spelled else _SYMBOL_PHRASES
    return (
        *rules((rf"(?<![\w.&'/]){any_of(phrases)}(?![\w'&/]|\.\w)", _phrase)),
        *_BESIDE_NUMBERS,
        *(_BESIDE_NAMES if spelled else ()),
        *_MONTHS,
    )


ROMAN_NUMERALS = rules(
    (rf"(?i)\b(?P<before>{_NUMBERED})\s(?P<numeral>[ivxlc]{{2,8}})\b(?!')", _numbered),
    # One letter is a numeral after a capital only: Part I, but the part I like.
    (rf"\b(?P<before>(?=[A-Z])(?i:{_NUMBERED}))\s(?P<numeral>[VX]|{_ONE})\b(?!')", _numbered),
    (r"(?P<before>)(?<![\w)])\((?P<numeral>[ivx]{1,4})\)", _numbered),
    (rf"\b(?P<before>{_MONARCHS})\s(?P<numeral>[IVX]{{2,6}}|[VX]|I(?=[;:)!?]|\.?\s*$))\b", _reign),
    (r"\b(?P<before>[A-Z][a-z]+)\s(?P<numeral>[IVX]{2,6})\b", _numbered),
    (r"\b[IVXLCDM]{5,15}\b", _roman_year),
)
