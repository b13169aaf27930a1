"""Reads English text aloud, in one of two forms.

*Spelled*, for vocabularies of letters: everything in words, acronyms and initials by the names of letters. *Written*,
for vocabularies of words: numbers, units, dates, addresses and symbols in words; letters, names, abbreviations and
punctuation are unchanged, since these voices can say them.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from functools import partial

from voxcpm_runtime.text.english.conventions import conventions
from voxcpm_runtime.text.english.numbers import YEARS, dates, numbers, quantities
from voxcpm_runtime.text.english.vocabulary import (
    BY_LETTER,
    WORDS_IN_CAPITALS,
    has_vowel,
    is_sayable,
    letter_by_letter,
    said_acronym,
    table_pairs,
    table_words,
)
from voxcpm_runtime.text.english.words import (
    NUMERAL_SIGNS,
    ROMAN_NUMERALS,
    abbreviations,
    addresses,
    list_markers,
)
from voxcpm_runtime.text.substitution import Substitution, rules, substituted

_PLAIN = str.maketrans(
    dict.fromkeys(map(chr, (*range(32), 127)), " ")
    | {
        "’": "'", "‘": "'", "‚": "'", "‛": "'", "ʼ": "'", "´": "'", "`": "'", "′": "'", "“": '"', "”": '"',
        "„": '"', "‟": '"', "«": '"', "»": '"', "″": '"', "‐": "-", "‑": "-", "‒": "–", "―": "—", "−": "-",
        "⁄": "/", "∕": "/", "™": "", "®": "", "℠": "", "\u00ad": "", "\u200b": "", "\u2060": "", "\ufeff": "",
    }
)  # fmt: skip
"""Control characters, and characters that NFKC does not map to their reading."""
_ASCII = _PLAIN | str.maketrans(
    {
        "Æ": "AE", "æ": "ae", "Ø": "O", "ø": "o", "Œ": "OE", "œ": "oe", "ß": "ss", "ẞ": "SS", "Ł": "L", "ł": "l",
        "Đ": "D", "đ": "d", "Ð": "D", "ð": "d", "Þ": "Th", "þ": "th", "ı": "i", "ħ": "h", "ŋ": "ng", "…": "...",
        "。": ".", "、": ",", "¿": "", "¡": "", "\u200c": "", "\u200d": "",
    }
)  # fmt: skip
"""`_PLAIN`, with letters and punctuation that a vocabulary of English letters lacks."""
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_FROM_SUPERSCRIPTS = str.maketrans(_SUPERSCRIPTS, "0123456789-")
_VULGAR = "¼½¾⅐-⅞"

_SYMBOL_WORDS = table_pairs("symbols")
_GREEK = {
    form: name for letter, name in table_pairs("Greek letters").items() for form in (letter, letter.upper())
}
_ARROWS = "[←-⇿➔-➾⟵-⟿]|<?[-=]{1,3}>"
_ELISIONS = r"(?:tis|twas|twere|em|til|cause|bout|round|n)\b"

_SYMBOLS_NEAR_NUMBERS = rules(
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
"""Symbols that depend on numbers or spaces around them, before numbers become words."""

_SYMBOLS = rules(
    {
        # A single Greek letter is a symbol; vocabularies of letters reject Greek words later.
        rf"(?<![^\W\d_])[{''.join(_GREEK)}](?![^\W\d_]{{2}}|[^\W\d_A-Za-z])": lambda match: (
            f" {_GREEK[match[0]]} "
        ),
        f"[{''.join(map(re.escape, _SYMBOL_WORDS))}]": lambda match: f" {_SYMBOL_WORDS[match[0]]} ",
        r"[#*_/\\^|<>~]": " ",
    }
)
"""Symbols with a name, and those that are not read."""

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
"""ASCII quotes, ellipses and dashes."""


_SPACES = rules(
    {
        "•": " ",
        r"(?<![^\x00-\x7f])[\u200c\u200d]+": "",
        r"\s+": " ",
        r" (?=[,.;:!?)\]](?!\w))": "",
        r",(?=[^\W_])": ", ",
    }
)
"""Tidies the spaces that replaced symbols and emoji leave in a text with punctuation."""

_AMBIGUOUS = table_words("ambiguous acronyms")
_LETTERED = table_words("before letters")
_BEFORE_INITIALS = table_words("before initials")
_SOUNDS = re.compile(r"[hm]+|[bg]r+|s+h+|pf+t*|ps+t+|ts+k+|z+|n?th")
"""Interjections without vowels, which are not acronyms: mhm, hmmm, shhh."""
_SHOUTED = re.compile(
    r"(?<![\w'])[A-Z]+'(?:T|LL|RE|VE|D|M)(?!\w)|\bI (?:AM|CAN)(?![\w'])"
    r"|\b(?:[Hh]e|[Ss]he|[Ii]t|[Ww]e|[Yy]ou|[Tt]hey|[Ww]ho) CAN(?![\w'])"
    r"|\b[Dd](?:o|id) IT(?=\s*(?:[.,;:!?\"]|$))"
)
"""Emphasized words, recognized by their ending or a neighbour: CAN'T, she CAN do IT."""
_CAPITALS = re.compile(r"(?<![\w'])([A-Z]{2,})('?s|'S)?(?![\w]|'[a-rt-z])")
_ANY_WORD = re.compile(r"[A-Za-z]{2,}")


def read_capitals(sentence: str) -> str:
    """The sentence with each word of capitals in lower case, or as the names of its letters."""
    words = _ANY_WORD.findall(sentence)
    capitals = list(filter(str.isupper, words))
    heading = len(capitals) > 1 and 2 * len(capitals) >= len(words) and any(map(_is_word, capitals))
    sentence = _SHOUTED.sub(lambda match: match[0].lower(), sentence)
    return _CAPITALS.sub(partial(_read_capital_word, heading=heading), sentence)


def _is_word(capitals: str) -> bool:
    if len(capitals) <= 3 or capitals in BY_LETTER or capitals in _AMBIGUOUS:
        return capitals in WORDS_IN_CAPITALS
    return is_sayable(capitals) or (len(capitals) >= 6 and has_vowel(capitals))


def _read_capital_word(match: re.Match[str], *, heading: bool) -> str:
    capitals, ending = match[1], (match[2] or "").lower()
    if ending == "'s" and match[2].isupper() and capitals in _AMBIGUOUS:
        return match[0].lower()
    if said := said_acronym(capitals, ending):
        return said
    in_heading = capitals in _AMBIGUOUS or (len(capitals) > 2 and is_sayable(capitals))
    is_word = _is_word(capitals) or (heading and in_heading)
    return match[0].lower() if is_word else letter_by_letter(capitals, ending)


def _initial(match: re.Match[str]) -> str:
    """An initial's letter name without the dot; unchanged if the dot seems to end a sentence."""
    before = re.search(r"([\w.']+)\W*$", match.string[max(0, match.start() - 40) : match.start()])
    word = before[1] if before else ""
    after_comma = len(word) > 1 and before is not None and before[0].endswith(", ")
    follows = re.match(r"\s*[A-Z]\.", match.string[match.end() : match.end() + 40])
    named = word[:1].isupper() and "'" not in word and word not in _LETTERED
    is_initial = not word or named or word in _BEFORE_INITIALS or after_comma
    if not follows and (match[1] == "I" or not is_initial):
        return match[0]
    return f"{letter_by_letter(match[1])} "


SINGLE_LETTERS = rules(
    {
        # Initials: U.S., J.R.R. Tolkien, George W. Bush.
        r"(?<![\w.'])(?:[A-Za-z]\.){2,20}(?:[A-Za-z](?![\w']))?": lambda match: letter_by_letter(
            match[0].replace(".", "")
        ),
        r"(?<![\w.'])([A-Z])\.(?=\s*[A-Z])": _initial,
        # iPhone, eBay
        r"(?<!\w)([ei])(?=[A-Z])": lambda match: f"{letter_by_letter(match[1])} ",
        # A is an article before a word, and a letter elsewhere.
        r"(?<![\w'])A(?=-[a-z]|[^\w\s'-]|\s*$|\s(?:and|or|to)\s[B-HJ-Z]\b)": "ay",
        r"(?:(?<=\b[Aa]n )|(?<=\b[Tt]he ))A(?![\w'.])": "ay",
        r"(?<![\w'])[B-HJ-Zb-hj-z](?!\w|'(?!s\b)\w)": lambda match: letter_by_letter(match[0]),
        r"(?<![\w'])(?:[b-df-hj-np-tv-xz]{2,5}|[hmszrt]{6,20})(?![\w'])": lambda match: (
            match[0] if _SOUNDS.fullmatch(match[0]) else letter_by_letter(match[0])
        ),
    }
)


# Cached, because a text is read again for each way of splitting it.
@functools.lru_cache(maxsize=256)
def read_aloud(sentence: str, *, spelled: bool = True) -> str:
    """A sentence as it is read aloud in English, spelled or written (see the module).

    Letters of other alphabets and long dashes are unchanged. Spelled words are in lower case or as written.
    """
    text = sentence.translate(_PLAIN) if sentence.isascii() else _plain_characters(sentence, spelled)
    text = substituted(text, _rules(spelled, numbered=re.search(r"\d", text) is not None))
    return substituted(read_capitals(text), _MARKS) if spelled else substituted(text, _SPACES)


@functools.cache
def _rules(spelled: bool, *, numbered: bool = True) -> tuple[Substitution, ...]:
    # Specific rules first: 14:30 and $4.20 become words before other numbers are read.
    return (
        *list_markers(spelled),
        *addresses(spelled),
        *conventions(spelled, numbered=numbered),
        *dates(spelled),
        *quantities(spelled),
        *abbreviations(spelled),
        *YEARS,
        *_SYMBOLS_NEAR_NUMBERS,
        *numbers(spelled),
        *_SYMBOLS,
        *ROMAN_NUMERALS,
        *(SINGLE_LETTERS if spelled else ()),
    )


def _plain_characters(text: str, ascii_only: bool) -> str:
    """The text in NFKC with plain quotes, without emoji and ornaments; ½ becomes 1/2, and ² becomes ^2.

    Letters of other alphabets and accents are kept. ascii_only: also replace Ø, … and ¿.
    """
    text = substituted(text, NUMERAL_SIGNS)
    table = _ASCII if ascii_only else _PLAIN
    text = re.sub(rf"(?<=\d)\s?(?=[{_VULGAR}])", " ", text)
    text = re.sub(f"[{_SUPERSCRIPTS}]+", lambda match: f"^{match[0].translate(_FROM_SUPERSCRIPTS)}", text)
    parts = (unicodedata.normalize("NFKC", part) for part in text.translate(table).split("…"))
    return "".join(map(_plain_character, "…".join(parts).translate(table)))


def _plain_character(char: str) -> str:
    if char.isascii() or char in _SYMBOL_WORDS:
        return char
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    category = unicodedata.category(char)
    if category in ("So", "Cc"):
        return " "
    joins = char in "\u200c\u200d"  # letters, in Hindi or Persian
    ornament = category in ("Sk", "Cf", "Me", "Co", "Cn", "Cs") or "\ufe00" <= char <= "\ufe0f"
    return "" if ornament and not joins else char
