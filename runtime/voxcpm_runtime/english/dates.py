"""Dates, years, decades and times of day in words."""

from __future__ import annotations

import re
from functools import partial

from voxcpm_runtime.english.vocabulary import (
    TABLES,
    any_of,
    cardinal,
    in_pairs,
    letter_by_letter,
    minutes,
    ordinal,
    plural,
)
from voxcpm_runtime.text.normalization import Substitution, rules

_MONTH_OF = TABLES.pairs("months")
_MONTHS = tuple(_MONTH_OF.values())
DAYS = TABLES.pairs("days of the week")
_MONTH = rf"(?P<month>{any_of(_MONTHS)}|(?:{'|'.join(_MONTH_OF)}|Sept)\b\.?)"
_DAY = r"(?P<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>1\d{3}|20\d\d)(?![\d,]*\d|\.\d|[%°€£])"
_MERIDIEM = r"(?P<meridiem>[AaPp])\.?[Mm]\b\.?"
_HOUR, _MINUTE = r"(?P<hour>[01]?\d|2[0-4])", r"(?P<minute>[0-5]\d)"
_AFTER_TIMES = {*_MONTHS, *DAYS, *DAYS.values(), "Central", "Eastern", "Greenwich", "Mountain", "Pacific"}
_FIRST_YEAR = 1010
"""The first number that is read as a year; those before it are said like other numbers."""


def year(number: str) -> str:
    """Four digits as a year: "nineteen eighty-four"."""
    return in_pairs(number) if int(number) >= _FIRST_YEAR else cardinal(number)


def month_name(month: str) -> str:
    """The name of a month from its first three letters."""
    return _MONTH_OF[month[:3]]


def _date(found: re.Match[str], *, day_first: bool = False) -> str:
    day, month = found["day"], found["month"]
    if month.isdigit():
        # Americans write the month first; a number above 12 must be the day.
        first, day = (month, day) if int(month) <= len(_MONTHS) else (day, month)
        month = _MONTHS[int(first) - 1]
    day = day.lstrip("0")
    if said := found.groupdict().get("year") or "":
        said = f", {year(said) if len(said) > 2 else cardinal(said)}"
    name = month_name(month)
    return f"the {ordinal(day)} of {name}{said}" if day_first else f"{name} {ordinal(day)}{said}"


def _numeric(found: re.Match[str]) -> str:
    """A date of numbers; unchanged if neither of the first two numbers can be a month."""
    both = int(found["day"]), int(found["month"])
    return _date(found) if 0 < min(both) <= len(_MONTHS) and max(both) <= 31 else found[0]


def _time(found: re.Match[str], *, spelled: bool) -> str:
    parts = found.groupdict()
    hour, minute, second, half = (parts.get(name) for name in ("hour", "minute", "second", "meridiem"))
    words = [cardinal(str(int(found["hour"])))]
    if second:
        words += [minutes(minute or "00"), minutes(second)]
    elif minute == "00" and not half:
        plain = re.match(r"\s*(?:noon|midnight)", found.string[found.end() : found.end() + 40])
        words += [] if plain else ["o'clock" if 0 < int(hour or 0) <= 12 else "hundred"]
    elif minute and minute != "00":
        words.append(minutes(minute))
    if half:
        words.append(letter_by_letter(f"{half}m") if spelled else f"{half}m".upper())
    # The dot of p.m. is the sentence's as well, except before the day or the zone.
    after = re.match(r"\s+([A-Z][a-z]+)|\s*$", found.string[found.end() : found.end() + 40])
    ends = half and found[0].endswith(".") and after is not None and after[1] not in _AFTER_TIMES
    return " ".join(words) + ("." if ends else "")


def _decade(found: re.Match[str]) -> str:
    number = found["decade"]
    return plural(year(number) if len(number) == 4 else cardinal(number))


def _years(found: re.Match[str]) -> str:
    last = found["last"]
    return f"{year(found['year'])} to {year(last) if len(last) > 2 else cardinal(last)}"


def dates(spelled: bool) -> tuple[Substitution, ...]:
    """Rules for dates, decades and times, before anything else makes words of their numbers."""
    time = partial(_time, spelled=spelled)
    weekday_before = rf",? (?:{_DAY} )?{_MONTH.replace('(?P<month>', '(?:')}"
    return rules(
        {
            # 2024-05-03T14:30 is a date and a time.
            r"(?<=\d\d-\d\d)T(?=\d\d:\d\d)": " ",
            r"(?<![\w-])(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)(?![\w-])": _numeric,
            r"(?<![\w/])(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4}|\d\d)(?![\w/])": _numeric,
            r"(?<![\w.])(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})(?!\w|\.\d)": _numeric,
            rf"(?<!\w){any_of(DAYS)}\b\.?(?={weekday_before})": lambda found: DAYS[found[0].rstrip(".")],
            rf"\b(?:the )?(?<![\d.,$£€-]){_DAY} (?:of )?{_MONTH}(?:,? {_YEAR})?": partial(
                _date, day_first=True
            ),
            # In May 5 men came.
            rf"(?<!\b[Ii]n )\b{_MONTH} {_DAY}(?![\w:%]|[.,]\d)(?:,? {_YEAR})?": _date,
            rf"\b{_MONTH} {_DAY},? {_YEAR}": _date,
            rf"\b{_MONTH},? {_YEAR}": lambda found: f"{month_name(found['month'])} {year(found['year'])}",
            r"(?<!\w)'?(?P<decade>1\d\d0|20\d0|[2-9]0)'?s\b": _decade,
            # Times: first a range, whose first part may have its half of the day from the second.
            r"(?:(?<=\d[ap]m)|(?<=\d [ap]m)|(?<=[ap]\.m\.))\s?[–-]\s?(?=\d)": " to ",
            r"(?<=\d)\s?[–-]\s?(?=[01]?\d(?::[0-5]\d)?\s?[AaPp]\.?[Mm]\b)": " to ",
            r"(?<=\d:[0-5]\d)\s?[–-]\s?(?=\d{1,2}:[0-5]\d)": " to ",
            rf"(?<![\w:.,]){_HOUR}:{_MINUTE}(?::(?P<second>[0-5]\d))?(?:\s?{_MERIDIEM})?(?![\w:]|[.,]\d)": time,
            rf"(?<![\w:.,$£€]){_HOUR}\s?{_MERIDIEM}(?!\w)": time,
        }
    )


_LONE = r"(?<![\w.,/:$£€^'-])"
_LONE_YEAR = r"(?P<year>1\d{3}|20\d\d)(?![\w%]|[.,:/-]\d)"
_BEFORE_YEARS = "(?:after|before|by|circa|during|from|in|since|till|until|year)"
YEARS = rules(
    {
        rf"{_LONE}(?P<year>1\d{{3}}|20\d\d)\s?[–-]\s?(?P<last>1\d{{3}}|20\d\d|\d\d)(?![\w%]|[.,-]\d)": _years,
        rf"\b({_BEFORE_YEARS}\s){_LONE_YEAR}": lambda found: found[1] + year(found["year"]),
        # Before a plural it is a count: 1500 pages.
        rf"{_LONE}{_LONE_YEAR}(?!\s(?:people|[a-z]{{4,20}}s)\b)": lambda found: year(found["year"]),
    }
)
"""Numbers that are read as years, after those with units are words."""
