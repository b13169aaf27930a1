"""E-mail addresses, URLs, file names, hashtags and names with @ in words."""

from __future__ import annotations

import re

from voxcpm_runtime.english import TABLES
from voxcpm_runtime.english.acronyms import has_vowel, is_sayable, said_acronym
from voxcpm_runtime.english.names import cardinal, digit_names, letter_by_letter
from voxcpm_runtime.text.substitutions import Substitution, any_of, rules

_MARKS = TABLES.pairs("marks in addresses")
_DOMAINS = any_of(TABLES.words("top-level domains"))
_WORDY_DOMAINS = any_of(TABLES.words("top-level domains that are words"))
_TOP_DOMAIN = rf"(?:{_DOMAINS}|{_WORDY_DOMAINS}(?=/\w))"
_FILES = any_of(TABLES.words("file extensions"))
# Lengths are bounded, so that a long line without any mark of an address is searched in linear time.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,8}}"
_TAIL = r"(?::\d{1,5})?(?:[/?#][\w./?=&#%~+:@-]{0,500})?"
_MAX_NUMBER_DIGITS = 2
"""A number in an address is said as one number up to this length, as page 12; longer ones are said digit by digit."""
_MAX_CODE_LETTERS = 3
"""A piece of an address may be an abbreviation up to this length although it has a vowel; longer ones are words."""


def addresses(spelled: bool) -> tuple[Substitution, ...]:
    """Rules for addresses, from the surest form to the least sure."""

    def piece(text: str) -> str:
        if text.isdigit():
            return cardinal(text) if len(text) <= _MAX_NUMBER_DIGITS else digit_names(text)
        if not text.isalpha() or not text.isascii():
            return _MARKS.get(text, text)
        return _piece_spelled(text) if spelled else text

    def address(found: re.Match[str]) -> str:
        # A mark at the end is the sentence's, not the address's; a slash there is not said.
        whole = found["address"].rstrip(".,?:-")
        said = map(piece, re.findall(r"[A-Za-z]+|\d+|[^\W_]|[\W_]", whole.rstrip("/")))
        return f" {' '.join(said)} {found['address'][len(whole) :]}"

    return rules(
        {
            r"<(?:mailto:)?([^<>\s]{3,500})>": r" \1 ",
            rf"(?<![\w.+-])(?P<address>[A-Za-z0-9][\w.+-]{{0,63}}@{_HOST})": address,
            rf"(?i)(?<!\w)(?:https?|ftp|file)://+(?P<address>{_HOST}{_TAIL})": address,
            rf"(?i)(?<![\w.-])(?P<address>www\.{_HOST}{_TAIL})": address,
            rf"(?<![\w.@-])(?P<address>{_LABEL}(?:\.{_LABEL}){{0,3}}\.{_TOP_DOMAIN}{_TAIL})(?![\w@]|\.\w)": address,
            rf"(?<![\w.])(?P<address>[\w-]{{0,80}}\.{_FILES})(?![\w@]|\.\w)": address,
            r"(?<![\w.~/])(?P<address>(?:[A-Za-z]:|~)(?:[/\\][\w.-]{1,80}){1,30}|(?:[/\\][\w.-]{1,80}){2,30})": address,
            r"(?<![\w&])(?P<mark>[#@])(?P<words>[A-Za-z]\w{0,80})": _tag,
        }
    )


def _piece_spelled(piece: str) -> str:
    if said := said_acronym(piece.upper()):
        return said
    is_word = is_sayable(piece) or (len(piece) > _MAX_CODE_LETTERS and has_vowel(piece))
    return piece.lower() if is_word else letter_by_letter(piece)


def _tag(found: re.Match[str]) -> str:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", found["words"])
    return f" {'hashtag' if found['mark'] == '#' else 'at'} {' '.join(words)} "
