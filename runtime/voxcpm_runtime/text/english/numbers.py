"""Rules for dates, money, measures, telephone numbers, versions, fractions, and finally all other numbers."""

from __future__ import annotations

import itertools
import re
from functools import partial

from voxcpm_runtime.text.english.vocabulary import (
    any_of,
    cardinal,
    decimal,
    digit_names,
    in_pairs,
    letter_by_letter,
    ordinal,
    plural,
    table_pairs,
    table_rows,
    table_words,
)
from voxcpm_runtime.text.substitution import Substitution, rules

_MONTH_OF = table_pairs("months")
_MONTHS = tuple(_MONTH_OF.values())
DAYS = table_pairs("days of the week")
_MONTH = rf"(?P<month>{any_of(_MONTHS)}|(?:{'|'.join(_MONTH_OF)}|Sept)\b\.?)"
_DAY = r"(?P<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
_LAST_DAY = r"\s?[–-]\s?(?P<last>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>1\d{3}|20\d\d)(?![\d,]*\d|\.\d|[%°€£])"
_ARTICLE = "(?:[Tt]he|[Tt]his|[Ee]very|[Ll]ast|[Nn]ext|[Aa]|his|her|my|our|their)"
_MERIDIEM = r"(?P<meridiem>[AaPp])\.?[Mm]\b\.?"
_HOUR, _MINUTE = r"(?P<hour>[01]?\d|2[0-4])", r"(?P<minute>[0-5]\d)"
_AFTER_TIMES = {*_MONTHS, *DAYS, *DAYS.values(), "Central", "Eastern", "Greenwich", "Mountain", "Pacific"}


def month_name(month: str) -> str:
    """The name of a month from its first three letters."""
    return _MONTH_OF[month[:3]]


def _date(match: re.Match[str], *, day_first: bool = False) -> str:
    day, month = match["day"], match["month"]
    if month.isdigit():
        # American order, month first, unless that is above 12.
        first, day = (month, day) if int(month) <= len(_MONTHS) else (day, month)
        month = _MONTHS[int(first) - 1]
    day = day.lstrip("0")
    if said := match.groupdict().get("year") or "":
        said = f", {in_pairs(said) if len(said) > 2 else cardinal(said)}"
    name = month_name(month)
    article = match.groupdict().get("article") or "the "
    return f"{article}{ordinal(day)} of {name}{said}" if day_first else f"{name} {ordinal(day)}{said}"


def _days(match: re.Match[str]) -> str:
    """A range of days in one month: march third to fifth."""
    year = f", {in_pairs(match['year'])}" if match["year"] else ""
    first, last = (ordinal(match[name].lstrip("0")) for name in ("day", "last"))
    return f"{month_name(match['month'])} {first} to {last}{year}"


def _numeric_date(match: re.Match[str]) -> str:
    """A numeric date; unchanged if neither number can be a month."""
    both = int(match["day"]), int(match["month"])
    return _date(match) if 0 < min(both) <= len(_MONTHS) and max(both) <= 31 else match[0]


def _minutes(number: str) -> str:
    return f"oh {cardinal(number[1])}" if number[0] == "0" else cardinal(number)


def _time(match: re.Match[str], *, spelled: bool) -> str:
    parts = match.groupdict()
    hour, minute, second, half = (parts.get(name) for name in ("hour", "minute", "second", "meridiem"))
    words = [cardinal(str(int(match["hour"])))]
    if second:
        words += [_minutes(minute or "00"), _minutes(second)]
    elif minute == "00" and not half:
        plain = re.match(r"\s*(?:noon|midnight)", match.string[match.end() : match.end() + 40])
        words += [] if plain else ["o'clock" if 0 < int(hour or 0) <= 12 else "hundred"]
    elif minute and minute != "00":
        words.append(_minutes(minute))
    if half:
        words.append(letter_by_letter(f"{half}m") if spelled else f"{half}m".upper())
    # The dot of p.m. also ends the sentence, except before a day or a time zone.
    after = re.match(r"\s+([A-Z][a-z]+)|\s*$", match.string[match.end() : match.end() + 40])
    ends = half and match[0].endswith(".") and after is not None and after[1] not in _AFTER_TIMES
    return " ".join(words) + ("." if ends else "")


def _decade(match: re.Match[str]) -> str:
    number = match["decade"]
    return plural(in_pairs(number) if len(number) == 4 else cardinal(number))


def _years(match: re.Match[str]) -> str:
    last = match["last"]
    return f"{in_pairs(match['year'])} to {in_pairs(last) if len(last) > 2 else cardinal(last)}"


def dates(spelled: bool) -> tuple[Substitution, ...]:
    """Rules for dates, decades and times, before other rules turn their numbers into words."""
    time = partial(_time, spelled=spelled)
    weekday_before = rf",? (?:{_DAY} )?{_MONTH.replace('(?P<month>', '(?:')}"
    return rules(
        {
            # 2024-05-03T14:30 is a date and a time.
            r"(?<=\d\d-\d\d)T(?=\d\d:\d\d)": " ",
            r"(?<![\w-])(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)(?![\w-])": _numeric_date,
            r"(?<![\w/])(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4}|\d\d)(?![\w/])": _numeric_date,
            r"(?<![\w.])(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})(?!\w|\.\d)": _numeric_date,
            rf"(?<!\w){any_of(DAYS)}\b\.?(?={weekday_before})": lambda match: DAYS[match[0].rstrip(".")],
            rf"\b(?P<article>{_ARTICLE} )?(?<![\d.,$£€-]){_DAY} (?:of )?{_MONTH}(?:,? {_YEAR})?": partial(
                _date, day_first=True
            ),
            # Ranges of days: March 3-5, 3-5 March, May 30-June 2.
            rf"(?<!\b[Ii]n )\b{_MONTH} {_DAY}{_LAST_DAY}(?![\w:%/-]|[.,]\d)(?:,? {_YEAR})?": _days,
            rf"(?<![\w.,$£€/-]){_DAY}{_LAST_DAY} {_MONTH}(?:,? {_YEAR})?": _days,
            rf"(?:(?<=[a-z.] \d)|(?<=[a-z.] \d\d))\s?[–-]\s?(?={_MONTH} \d)": " to ",
            # In May 5 men came.
            rf"(?<!\b[Ii]n )\b{_MONTH} {_DAY}(?![\w:%]|[.,]\d)(?:,? {_YEAR})?": _date,
            rf"\b{_MONTH},? {_YEAR}": lambda match: f"{month_name(match['month'])} {in_pairs(match['year'])}",
            r"(?<!\w)'?(?P<decade>1\d\d0|20\d0|[2-9]0)'?s\b": _decade,
            # Times. Ranges first: in 3-5 pm, pm counts for both.
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
        rf"\b({_BEFORE_YEARS}\s){_LONE_YEAR}": lambda match: match[1] + in_pairs(match["year"]),
        # Before a plural it is a quantity: 1500 pages.
        rf"{_LONE}{_LONE_YEAR}(?!\s(?:people|[a-z]{{4,20}}s)\b)": lambda match: in_pairs(match["year"]),
    }
)
"""Rules for numbers that are read as years, after those with units have become words."""


_PREFIXES = {
    "1": "", "k": "kilo", "c": "centi", "d": "deci", "m": "milli", "μ": "micro", "n": "nano", "M": "mega", "G": "giga",
}  # fmt: skip
_UNITS = {
    **{
        prefix.strip("1") + base: (f"{_PREFIXES[prefix]}{name}", f"{_PREFIXES[prefix]}{name}s")
        for base, (name, prefixes) in table_rows("units with prefixes").items()
        for prefix in prefixes
    },
    **{symbol: (name, f"{name}s") for symbol, name in table_pairs("units of data").items()},
    **{symbol: (one, several) for symbol, (one, several) in table_rows("units").items()},
}
"""Symbol → singular and plural, as "km" → "kilometer", "kilometers"."""
_ATTACHED_UNITS = frozenset(["in", "k", "M", "B"])
"""Symbols that are units only directly after a number: `5 in` may have a preposition."""
_CURRENCIES = table_rows("currencies")
"""Symbol or code → singular and plural of the currency and of its hundredth, if it has one."""
_SCALES = table_pairs("scales")  # What follows an amount of money

# Bounded repetitions keep the search linear on long lines of digits.
_NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,12}(?!\d)|\d{1,40})(?:\.\d{1,40})?|\.\d{1,40}"
_LOW = rf"(?P<low>{_NUMBER})\s?[–-]\s?"
_AMOUNT = rf"(?:{_LOW})?(?P<number>{_NUMBER})"
_BEFORE = r"(?P<article>\b[Aa]n?\s)?(?P<sign>(?<![\w.)])[-−])?"
_SCALE = rf"(?:(?P<joined>-)?\s?(?P<scale>{any_of(_SCALES)})\b)?"
_SYMBOL = rf"(?P<currency>{any_of(itertools.filterfalse(str.isalpha, _CURRENCIES))})"
_CODE = rf"(?P<currency>{any_of(_CURRENCIES)})"
_CODE_BEFORE = rf"(?P<currency>{any_of(filter(str.isalpha, _CURRENCIES))})"
_UNIT = rf"{any_of(_UNITS)}(?:\^[23])?"
_SPACED_UNIT = rf"{any_of(_UNITS.keys() - _ATTACHED_UNITS)}(?:\^[23])?"
_FRACTION_UNIT = any_of(unit for unit in _UNITS.keys() - _ATTACHED_UNITS if len(unit) > 1 and unit.isalpha())
_MEASURE = (
    rf"(?P<unit>(?:(?<=\d){_UNIT}|{_SPACED_UNIT})(?:/(?:{_UNIT}|[a-z]{{3,12}})(?!\w))?)(?![\w'^&]|\.[A-Z])"
)
_HALVES = {"2": ("half", "halves"), "4": ("quarter", "quarters")}
_LETTER_UNITS = frozenset("AVWJNLF")
_AFTER_UNITS = re.compile(r"\s*(?:[^\w\s]|$)|\s(?:and|at|from|in|is|of|on|or|to|was)\b")
_POWERED = re.compile(rf"\s{any_of(table_words('powered'))}s?\b")
_PER = any_of(table_words("per"))
_COUNTED = any_of(table_words("numbered in parts"))
_CALLED_IN_PAIRS = any_of(table_words("numbered in pairs"))


def _with_range(match: re.Match[str], said: str) -> str:
    """A range, if the match has a lower end: three to five dollars."""
    return f"{decimal(match['low'])} to {said}" if match["low"] else said


def _is_one(match: re.Match[str]) -> bool:
    """Whether the unit is in the singular: after 1, and in a 5 km run."""
    return match["article"] is not None or (match["number"] == "1" and match["low"] is None)


def _money(match: re.Match[str], *, spelled: bool) -> str:
    one, several, *coin_names = _CURRENCIES[match["currency"]]
    if spelled and one.startswith("US "):
        one, several = f"{letter_by_letter('US')} dollar", f"{letter_by_letter('US')} dollars"
    number, scale = match["number"], match["scale"]
    sign, article = "minus " if match["sign"] else "", match["article"] or ""
    whole, _, part = number.replace(",", "").partition(".")
    joined = match["joined"] or match.string.startswith("-a", match.end())
    unit = one if joined or (_is_one(match) and not (scale and not article)) else several
    if scale or len(part) not in (0, 2) or not coin_names:
        said = " ".join(filter(None, (decimal(number), _SCALES.get(scale or ""), unit)))
        return article + _with_range(match, sign + said)
    coins = f"{cardinal(str(int(part)))} {coin_names[int(part) != 1]}" if part.strip("0") else ""
    note = one if whole == "1" and not match["low"] else unit
    notes = f"{cardinal(whole)} {note}" if whole.strip("0") or not coins else ""
    return article + _with_range(match, sign + " and ".join(filter(None, (notes, coins))))


def _is_name(match: re.Match[str]) -> bool:
    """Whether a letter after a number and a space is not a unit, as in 3 V necks and Section 5 A."""
    numbered = re.search(r"\b[A-Z][a-z]+\s$", match.string[: match.start()][-20:])
    return bool(numbered) or not (_AFTER_UNITS.match(match.string, match.end()) or _is_adjective(match))


def _is_adjective(match: re.Match[str]) -> bool:
    """Whether a measure describes what follows: 60 W bulbs."""
    return _POWERED.match(match.string, match.end()) is not None


def _measure(match: re.Match[str]) -> str:
    unit, _, per = match["unit"].partition("/")
    if match["dash"] == " " and unit in _LETTER_UNITS and _is_name(match):
        return match[0]
    words = _unit_name(unit, one=_is_one(match) or match["dash"] == "-" or _is_adjective(match))
    if per:
        words += f" per {_unit_name(per, one=True)}"
    number = _with_range(match, decimal(match["number"]))
    return f"{match['article'] or ''}{'minus ' if match['sign'] else ''}{number} {words}"


def _unit_name(unit: str, *, one: bool) -> str:
    symbol, _, power = unit.partition("^")
    if symbol not in _UNITS:  # a word: per person
        return unit
    name = _UNITS[symbol][0 if one else 1]
    if symbol == "s" and power:
        return f"{name} {'squared' if power == '2' else 'cubed'}"
    return f"{'square' if power == '2' else 'cubic'} {name}" if power else name


def _height(match: re.Match[str]) -> str:
    pairs = ((match[1], "ft"), (match[2], "in"))
    return " ".join(f"{cardinal(number)} {_unit_name(unit, one=number == '1')}" for number, unit in pairs)


def _telephone_number(match: re.Match[str]) -> str:
    """A telephone number: digits, with a pause after each group."""
    groups = ", ".join(digit_names(group) for group in re.findall(r"\d+", match[0]))
    return f"plus {groups}" if match[0].startswith("+") else groups


def _parts(match: re.Match[str]) -> str:
    """The parts of a version or section number, after the word that the pattern includes."""
    before = match.groupdict().get("name") or ""
    return before + " point ".join(cardinal(part) for part in match["number"].split("."))


def _fraction(match: re.Match[str]) -> str:
    """Two thirds, three quarters, one over two hundred fifty, two and a half."""
    whole, upper, lower = match.group("whole", "upper", "lower")
    if len(lower) > 2 or int(lower) in (0, 1) or int(upper) > int(lower) > 20:
        said = f"{cardinal(upper)} over {cardinal(lower)}"
    else:
        one, several = _HALVES.get(lower, (ordinal(lower), f"{ordinal(lower)}s"))
        said = f"{cardinal(upper)} {one if upper == '1' else several}"
    return f"{cardinal(whole)} and {said.replace('one ', 'a ', 1)}" if whole else said


def _size(match: re.Match[str]) -> str:
    """1920x1080 is nineteen twenty by ten eighty."""
    return f"{_side(match[1])} {'times' if match[2] == '×' else 'by'} {_side(match[3])}"


def _side(number: str) -> str:
    return in_pairs(number) if len(number) == 4 and number.isdecimal() else decimal(number)


def _mixed(match: re.Match[str], *, spelled: bool) -> str:
    """Letters and digits in one word: MP3, H2O, 4K. Parts of more than three letters are read as words."""

    def said(piece: str) -> str:
        if piece.isdigit():
            return _short_number(piece)
        return letter_by_letter(piece) if spelled and len(piece) <= 3 else piece

    return " ".join(map(said, re.findall(r"\d+|[A-Za-z]+", match[0])))


def _short_number(number: str) -> str:
    if len(number) == 4:
        return in_pairs(number)
    return cardinal(number) if len(number) < 3 else digit_names(number)


def _power(match: re.Match[str]) -> str:
    if match[0] in ("^2", "^3"):
        return " squared" if match[0] == "^2" else " cubed"
    return f" to the power of {'minus ' if match[1] else ''}{cardinal(match[2])}"


def quantities(spelled: bool) -> tuple[Substitution, ...]:
    """Rules for numbers with a unit, a currency or another telling neighbour."""
    money = partial(_money, spelled=spelled)
    return rules(
        {
            # Telephone and Internet numbers.
            r"(?<![\w+])\+\d{1,3}(?:[ .-]\(?\d{2,4}\)?){2,5}(?![\w-])": _telephone_number,
            r"(?<![\w.-])(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])": _telephone_number,
            r"(?<![\w.,-])\d{3}-\d{4}(?![\w-]|[.,]\d)": _telephone_number,
            r"(?<![\w.,+-])0\d{2,4}[ -]\d{3,4}[ -]\d{3,4}(?![\w-]|[.,]\d)": _telephone_number,
            r"(?<=\bISBN )[\d-]{10,17}": _telephone_number,
            r"(?<=\b[Cc]all )\d{3}\b|(?<=\b[Dd]ial )\d{3}\b": lambda match: digit_names(match[0]),
            r"(?<![\w.])(?P<number>\d{1,3}(?:\.\d{1,3}){3})(?!\w|\.\d)": lambda match: " dot ".join(
                map(digit_names, match[0].split("."))
            ),
            # Money.
            r"(?<=[\d%kmMbn])\s?[–-]\s?(?=[$£€¥]\d)|(?<=\d%)\s?[–-]\s?(?=\d)": " to ",
            rf"{_BEFORE}{_SYMBOL}\s?(?:{_LOW}(?P=currency)?)?(?P<number>{_NUMBER}){_SCALE}": money,
            rf"{_BEFORE}(?<![\w.]){_AMOUNT}{_SCALE}\s?{_CODE}(?!\w)": money,
            rf"{_BEFORE}(?<!\w){_CODE_BEFORE}\s?{_AMOUNT}{_SCALE}(?!\w)": money,
            # Measures. With a dot within a sentence, in. means inches.
            r"([x×]\s?\d{1,6})\s?in\.(?=\s+[a-z])": r"\1 inch",
            r"(?<=\d)\s?in\.(?=\s+[a-z])": "in",
            r"(?<![\w.,])(\d{1,2})(?:'|\s?ft\.?)\s?(\d{1,2})(?:\"|''|\s?in\b\.?)": _height,
            rf"{_BEFORE}(?<![\w.,^/])(?!\d+B\b|401k\b){_AMOUNT}(?P<dash>-|\s)?{_MEASURE}(?:\.(?=,|\s+[a-z]))?": (
                _measure
            ),
            # 3/4 oz; a fraction counts as one.
            rf"(?<=\d/\d)\s?({_FRACTION_UNIT})(?![\w'^])\.?": lambda match: (
                f" {_unit_name(match[1], one=True)}"
            ),
            rf"(?<=[a-z])/({_PER})\b": lambda match: f" per {_unit_name(match[1], one=True)}",
            # ZIP codes after a state.
            r"(?<=\b[A-Z]{2} )\d{5}\b": lambda match: digit_names(match[0]),
        }
    )


def numbers(spelled: bool) -> tuple[Substitution, ...]:
    """Rules for all other numbers."""
    mixed = partial(_mixed, spelled=spelled)
    return rules(
        {
            r"(?<![\w.])(?:v|V(?=\d+\.\d)|v\.\s?)(?P<number>\d+(?:\.\d+){0,9})(?!\w|\.\d)": lambda match: (
                f"version {_parts(match)}"
            ),
            r"(?<![\w.])(?P<number>\d+(?:\.\d+){2,9})(?!\w|\.\d)": _parts,
            rf"(?P<name>\b{_COUNTED}\s)(?P<number>\d+\.\d+)(?!\w|\.\d)": _parts,
            rf"(\b{_CALLED_IN_PAIRS}\s)([1-9]\d{{2,3}})(?!\w|[.,/-]\d)": lambda match: (
                match[1] + in_pairs(match[2])
            ),
            r"(?<=\b[Aa] )1/2(?=\s[a-z])": "half",
            r"(?<=\d/\d)\s?[-–—]\s?(?=\d{1,2}/\d{1,2}\b)": " to ",
            r"(?<![\w.,/^])(?:(?P<whole>\d{1,3}) )?(?P<upper>\d{1,3})/(?P<lower>\d{1,3})(?![\w/]|[.,]\d)": _fraction,
            r"(?<![\w.])(\d+(?:\.\d+)?)\s?([x×])\s?(\d+(?:\.\d+)?)(?!\w|\.\d)": _size,
            r"(?<![\w.])(\d+(?:\.\d+)?)[x×](?![\w^])": lambda match: f"{decimal(match[1])} times",
            r"(?<=\w)\^([-−]?)(\d+)": _power,
            r"(?<=\d)\s?[–—]\s?(?=\d)|(?<=[\d%])-(?=\d)": " to ",
            r"(?<=\d) [-−] (?=\d)": " minus ",
            r"(?<![\w.)])[-−](?=\.?\d)": "minus ",
            r"(?<=\d):(?=\d)": " to ",
            r"(?<![\w.,])(\d[\d,]{0,40})(?:st|nd|rd|th|ST|ND|RD|TH)\b": lambda match: ordinal(match[1]),
            # COVID-19, F-16, R2-D2; and USB-C, if it is spelled.
            rf"(?<=[A-Z])-(?=[\d{'A-Z' if spelled else ''}])|(?<=\d)-(?=[A-Z])": " ",
            r"(?<![\w.,])(?=[A-Za-z]{0,20}\d)(?=\d{0,20}[A-Za-z])[A-Za-z\d]+(?!\w)": mixed,
            rf"(?<![\d.])(?:{_NUMBER})": lambda match: decimal(match[0]),
            # The rest is next to letters or malformed.
            r"\d+": lambda match: f" {digit_names(match[0])} ",
        }
    )
