"""English prose as it is read aloud, in one of two forms.

*Spelled*, for voices whose vocabulary is letters: everything in words, acronyms and initials by the names of letters.
*Written*, for voices whose vocabulary is words: numbers, units, dates, addresses and symbols in words; letters, names,
abbreviations and punctuation stay as they are, since these voices know how to say them.
"""

from __future__ import annotations

import functools
import re
import unicodedata

from voxcpm_runtime.english.abbreviations import ROMAN_NUMERALS, abbreviations, list_markers
from voxcpm_runtime.english.acronyms import LETTERS_SAID_SINGLY, addresses, with_capitals_said
from voxcpm_runtime.english.dates import YEARS, dates
from voxcpm_runtime.english.quantities import numbers, quantities
from voxcpm_runtime.english.vocabulary import TABLES
from voxcpm_runtime.text.normalization import Substitution, rules, substituted

_PLAIN = str.maketrans(
    dict.fromkeys(map(chr, (*range(32), 127)), " ")
    | {
        "’": "'", "‘": "'", "‚": "'", "‛": "'", "ʼ": "'", "´": "'", "`": "'", "′": "'", "“": '"', "”": '"',
        "„": '"', "‟": '"', "«": '"', "»": '"', "″": '"', "‐": "-", "‑": "-", "‒": "–", "―": "—", "−": "-",
        "⁄": "/", "∕": "/", "™": "", "®": "", "℠": "", "\u00ad": "", "\u200b": "", "\u2060": "", "\ufeff": "",
    }
)  # fmt: skip
"""Control characters, and characters that Unicode does not decompose, or not into what is read."""
_ASCII = _PLAIN | str.maketrans(
    {
        "Æ": "AE", "æ": "ae", "Ø": "O", "ø": "o", "Œ": "OE", "œ": "oe", "ß": "ss", "ẞ": "SS", "Ł": "L", "ł": "l",
        "Đ": "D", "đ": "d", "Ð": "D", "ð": "d", "Þ": "Th", "þ": "th", "ı": "i", "ħ": "h", "ŋ": "ng", "…": "...",
        "。": ".", "、": ",", "¿": "", "¡": "", "\u200c": "", "\u200d": "",
    }
)  # fmt: skip
"""The same with letters and marks that a vocabulary of English letters lacks."""
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_FROM_SUPERSCRIPTS = str.maketrans(_SUPERSCRIPTS, "0123456789-")
_VULGAR = "¼½¾⅐-⅞"

_WORDS = TABLES.pairs("symbols")
_GREEK = TABLES.pairs("Greek letters")
_ARROWS = "[←-⇿➔-➾⟵-⟿]|<?[-=]{1,3}>"
_ELISIONS = r"(?:tis|twas|twere|em|til|cause|bout|round|n)\b"

_BESIDE_NUMBERS = rules(
    {
        _ARROWS: ", ",
        r"(?<=\s)<=(?=\s)": " less than or equal to ",
        r"(?<=\s)>=(?=\s)": " greater than or equal to ",
        r"(?<=\s)!=(?=\s)": " not equal to ",
        r"(?<=[\w)]\s)<(?=\s)|<(?=\d)": " less than ",
        r"(?<=[A-Za-z]{3}) > (?=[A-Za-z]{3})": ", ",
        r"(?<=[\w)]\s)>(?=\s)|(?<!\w)>(?=\d)": " greater than ",
        r"(?i)\bcopyright (?:©|\(c\))": "copyright",
        r"[~≈](?=\s?\d)": " about ",
        r"#(?=\d)": " number ",
        r"(?<=\w) \* (?=\w)|(?<=\d)\*(?=\d)": " times ",
        r"={2,}": "=",
    }
)
"""Symbols that a number or their spaces explain, while numbers are digits still."""

_SYMBOLS = rules(
    {
        # A Greek letter by itself is a symbol; voices of letters refuse a word of them later.
        rf"(?<![^\W\d_])[{''.join(_GREEK)}](?![^\W\d_])": lambda found: f" {_GREEK[found[0]]} ",
        f"[{''.join(map(re.escape, _WORDS))}]": lambda found: f" {_WORDS[found[0]]} ",
        r"[#*_/\\^|<>~]": " ",
    }
)
"""Symbols that have a word, and those that are not read."""

_MARKS = rules(
    {
        r"(?<!\w)'(?!\w)": " ",
        # 'a quotation', but not 'tis or the dogs' bowls.
        rf"(?<!\w)'(?!{_ELISIONS})(?=\w)": "",
        r"(?<![\Ws])'(?!\w)": "",
        r'"': "",
        r"(?<!\.)\.{2,}(?=\s*[?!])": "",
        r"\.{2,}(?=\s*\w)": ", ",
        r"(?:\s*\.){2,}": ".",
        r"\s-{1,3}(?=\s)|-{2,}": ", ",
        r"(?<!\w)-|-(?!\w)": " ",
    }
)
"""Quotes, ellipses and dashes, as far as they are ASCII."""


_SPACES = rules(
    {
        "•": " ",
        r"(?<![^\x00-\x7f])[\u200c\u200d]+": "",
        r"\s+": " ",
        r" (?=[,.;:!?)\]](?!\w))": "",
        r",(?=[^\W_])": ", ",
    }
)
"""What replaced symbols and emoji leave in a text that keeps its punctuation."""


# A text is read again for each way of cutting it that is tried.
@functools.lru_cache(maxsize=256)
def read_aloud(sentence: str, *, spelled: bool = True) -> str:
    """A sentence as an English reader says it, spelled or written; see above.

    Letters of other alphabets stay. Spelled words are in small letters or as they were written, and long dashes stay.
    """
    text = sentence.translate(_PLAIN) if sentence.isascii() else _plain_characters(sentence, spelled)
    text = substituted(text, _rules(spelled))
    return substituted(with_capitals_said(text), _MARKS) if spelled else substituted(text, _SPACES)


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
        *_BESIDE_NUMBERS,
        *numbers(spelled),
        *_SYMBOLS,
        *ROMAN_NUMERALS,
        *(LETTERS_SAID_SINGLY if spelled else ()),
    )


def _plain_characters(text: str, ascii_only: bool) -> str:
    """The text with ASCII for compatibility characters, plain quotes, and without emoji and ornaments.

    ½ becomes 1/2 and a superscript two ^2. Letters of other alphabets and accents stay. ascii_only: no Ø, …, ¿.
    """
    table = _ASCII if ascii_only else _PLAIN
    text = re.sub(rf"(?<=\d)\s?(?=[{_VULGAR}])", " ", text)
    text = re.sub(f"[{_SUPERSCRIPTS}]+", lambda found: f"^{found[0].translate(_FROM_SUPERSCRIPTS)}", text)
    parts = (unicodedata.normalize("NFKC", part) for part in text.translate(table).split("…"))
    return "".join(map(_plain_character, "…".join(parts).translate(table)))


def _plain_character(char: str) -> str:
    if char.isascii() or char in _WORDS:
        return char
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    category = unicodedata.category(char)
    if category in ("So", "Cc"):
        return " "
    joins = char in "\u200c\u200d"  # letters, in Hindi or Persian
    ornament = category in ("Sk", "Cf", "Me", "Co", "Cn", "Cs") or "\ufe00" <= char <= "\ufe0f"
    return "" if ornament and not joins else char
