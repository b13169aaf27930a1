"""Numbers in English words, by the library `num2words`.

Numbers are strings of ASCII digits, so that leading zeros are not lost.
"""

from __future__ import annotations

import functools
import re

_MAX_DIGITS = 36
"""Longer numbers are read digit by digit: nobody knows the names after decillions."""
_HALVES = {"2": ("half", "halves"), "4": ("quarter", "quarters")}


@functools.lru_cache(4096)
def number_name(number: str) -> str:
    """The number as British English writes it: "one thousand, two hundred and thirty-four"."""
    if len(number) > _MAX_DIGITS:
        return digit_names(number)
    # Imported here: most texts for other voices have no number to read.
    from num2words import num2words

    return str(num2words(int(number)))


def digit_names(number: str) -> str:
    """The digits one by one: "nine one one"."""
    return " ".join(number_name(digit) for digit in number)


def cardinal(number: str) -> str:
    """The number as American English says it: "one thousand two hundred thirty-four".

    Thousands may be separated by commas. A number with a leading zero is read digit by digit, as agent 007.
    """
    number = number.replace(",", "")
    if len(number) > 1 and number[0] == "0":
        return digit_names(number)
    return number_name(number).replace(" and ", " ").replace(",", "")


def ordinal(number: str) -> str:
    """The ordinal number in words: "twenty-first"."""
    from num2words import num2words

    number = number.replace(",", "")
    if len(number) > _MAX_DIGITS:
        return digit_names(number)
    return str(num2words(int(number), to="ordinal")).replace(" and ", " ").replace(",", "")


def decimal(number: str) -> str:
    """A number with or without a decimal point: "three point one four"."""
    whole, point, part = number.partition(".")
    words = [cardinal(whole)] if whole else []
    return " ".join([*words, "point", digit_names(part)] if point else words)


def in_pairs(number: str) -> str:
    """Three or four digits as years and resolutions are said: "nineteen oh five", "ten eighty", "two thousand five"."""
    high, low = number[:-2], number[-2:]
    if int(high) % 10 == 0 and int(low) < 10:
        return cardinal(number)
    return f"{cardinal(high)} {'hundred' if low == '00' else minutes(low)}"


def minutes(number: str) -> str:
    """Two digits as after an hour: "oh five", "thirty"."""
    return f"oh {cardinal(number[1])}" if number[0] == "0" else cardinal(number)


def fraction(upper: str, lower: str) -> str:
    """A fraction in words: "two thirds", "three quarters", "one hundred ninety over two hundred fifty"."""
    if len(lower) > 2 or int(lower) in (0, 1):
        return f"{cardinal(upper)} over {cardinal(lower)}"
    one, several = _HALVES.get(lower, (ordinal(lower), f"{ordinal(lower)}s"))
    return f"{cardinal(upper)} {one if upper == '1' else several}"


def plural(words: str) -> str:
    """The words with the last one in the plural, for decades and letters: "nineteen twenties", "esses"."""
    if re.search("[^aeiou]y$", words):
        return f"{words[:-1]}ies"
    return f"{words}es" if words.endswith(("s", "x", "z", "ch", "sh")) else f"{words}s"
