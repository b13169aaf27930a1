"""English prose as it is read aloud, in one of two forms.

*Spelled*, for voices whose vocabulary is letters: everything in words, acronyms and initials by the names of letters.
*Written*, for voices whose vocabulary is words: numbers, units, dates, addresses and symbols in words; letters, names,
abbreviations and punctuation stay as they are, since these voices know how to say them.
"""

from __future__ import annotations

import functools

from voxcpm_runtime.english.abbreviations import ROMAN_NUMERALS, abbreviations, list_markers
from voxcpm_runtime.english.acronyms import LETTERS_SAID_SINGLY, with_capitals_said
from voxcpm_runtime.english.addresses import addresses
from voxcpm_runtime.english.dates import YEARS, dates
from voxcpm_runtime.english.quantities import numbers, quantities
from voxcpm_runtime.english.symbols import BESIDE_NUMBERS, MARKS, SPACES, SYMBOLS, plain_characters
from voxcpm_runtime.text.substitutions import Substitution, substituted


def read_aloud(sentence: str, *, spelled: bool = True) -> str:
    """A sentence as an English reader says it, spelled or written; see above.

    Letters of other alphabets stay. Spelled words are in small letters or as they were written, and long dashes stay.
    """
    text = substituted(plain_characters(sentence, ascii_only=spelled), _rules(spelled))
    return substituted(with_capitals_said(text) if spelled else text, MARKS if spelled else SPACES)


@functools.cache
def _rules(spelled: bool) -> tuple[Substitution, ...]:
    # What its neighbours explain comes first: 14:30 and $4.20 are words by the time other numbers are read.
    return (
        *list_markers(spelled),
        *addresses(spelled),
        *dates(spelled),
        *quantities(spelled),
        *abbreviations(spelled),
        *YEARS,
        *BESIDE_NUMBERS,
        *numbers(spelled),
        *SYMBOLS,
        *ROMAN_NUMERALS,
        *(LETTERS_SAID_SINGLY if spelled else ()),
    )
