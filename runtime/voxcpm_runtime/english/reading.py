"""English prose as it is read aloud: numbers, units, addresses, abbreviations, capitals and symbols in words."""

from __future__ import annotations

from voxcpm_runtime.english.abbreviations import ABBREVIATIONS, LIST_MARKERS, ROMAN_NUMERALS
from voxcpm_runtime.english.acronyms import LETTERS_SAID_SINGLY, with_capitals_said
from voxcpm_runtime.english.addresses import ADDRESSES
from voxcpm_runtime.english.dates import DATES, YEARS
from voxcpm_runtime.english.quantities import NUMBERS, QUANTITIES
from voxcpm_runtime.english.symbols import BESIDE_NUMBERS, MARKS, SYMBOLS, plain_characters
from voxcpm_runtime.text.substitutions import substituted

# What its neighbours explain comes first: 14:30 and $4.20 are no numbers of their own any more when numbers come.
_NUMBERS = (
    *LIST_MARKERS, *ADDRESSES, *DATES, *QUANTITIES, *ABBREVIATIONS, *YEARS, *BESIDE_NUMBERS, *NUMBERS,
)  # fmt: skip
_LETTERS = (*SYMBOLS, *ROMAN_NUMERALS, *LETTERS_SAID_SINGLY)


def read_aloud(sentence: str) -> str:
    """A sentence in the words that an English reader says. Words are in small letters or as they were written.

    What is not English stays: marks such as a long dash, letters of other alphabets, accents.
    """
    text = substituted(plain_characters(sentence), _NUMBERS)
    return substituted(with_capitals_said(substituted(text, _LETTERS)), MARKS)
