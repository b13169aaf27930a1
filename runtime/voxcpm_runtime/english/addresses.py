"""E-mail addresses, URLs, file names, hashtags and names with @ in words."""

from __future__ import annotations

import re

from voxcpm_runtime.english.acronyms import has_vowel, is_sayable, said_acronym
from voxcpm_runtime.english.letter_names import letter_by_letter
from voxcpm_runtime.english.number_words import cardinal, digit_names
from voxcpm_runtime.text.substitutions import Substitution, any_of, word_set

_MARKS = {
    ".": "dot", "@": "at", "/": "slash", "\\": "backslash", "_": "underscore", "-": "dash", "+": "plus", ":": "colon",
    "?": "question mark", "=": "equals", "&": "and", "#": "hash", "%": "percent", "~": "tilde",
}  # fmt: skip
_DOMAINS = any_of(word_set("com org net edu gov io ai dev app info uk de fr ch ca au eu jp cn tv"))
_WORDY_DOMAINS = any_of(word_set("co gl in is it ly me us"))
"""Domains that are words, too: addresses only with a path."""
_FILES = any_of(
    word_set(
        """7z aac bat bin bmp c cfg conf cpp css csv doc docx exe flac gif go gz h htm html ini ipynb iso java jpeg
        jpg js json log m4a md mkv mov mp3 mp4 ogg pdf png ppt pptx py rar rb rs rtf sh sql svg swift tar tex
        tiff toml ts tsv txt wav webm webp xls xlsx xml yaml yml zip"""
    )
)
# Lengths are bounded, so that a long line without any mark of an address is searched in linear time.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,8}}"
_TAIL = r"(?::\d{1,5})?(?:[/?#][\w./?=&#%~+:@-]{0,500})?"
_LONGEST_NUMBER = 2
"""Digits of a number in an address that is said as one number, as page 12; longer ones are said digit by digit."""

_LONGEST_CODE = 3
"""Letters of a piece of an address that may be an abbreviation although it has a vowel; longer ones are words."""


def _said(address: str) -> str:
    return " ".join(_piece(piece) for piece in re.findall(r"[A-Za-z]+|\d+|[^\W_]|[\W_]", address))


def _piece(piece: str) -> str:
    if piece.isdigit():
        return cardinal(piece) if len(piece) <= _LONGEST_NUMBER else digit_names(piece)
    if not piece.isalpha() or not piece.isascii():
        return _MARKS.get(piece, piece)
    if said := said_acronym(piece.upper()):
        return said
    is_word = is_sayable(piece) or (len(piece) > _LONGEST_CODE and has_vowel(piece))
    return piece.lower() if is_word else letter_by_letter(piece)


def _of_match(found: re.Match[str]) -> str:
    # A mark at the end is the sentence's, not the address's; a slash there is not said.
    address = found["address"].rstrip(".,?:-")
    return f" {_said(address.rstrip('/'))} {found['address'][len(address) :]}"


def _tag(found: re.Match[str]) -> str:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", found["words"])
    return f" {'hashtag' if found['mark'] == '#' else 'at'} {' '.join(words)} "


ADDRESSES: tuple[Substitution, ...] = tuple(
    (re.compile(pattern, flags), replacement)
    for pattern, flags, replacement in (
        (r"<(?:mailto:)?([^<>\s]{3,500})>", 0, r" \1 "),
        (rf"(?<![\w.+-])(?P<address>[A-Za-z0-9][\w.+-]{{0,63}}@{_HOST})", 0, _of_match),
        (rf"(?<!\w)(?:https?|ftp|file)://+(?P<address>{_HOST}{_TAIL})", re.IGNORECASE, _of_match),
        (rf"(?<![\w.-])(?P<address>www\.{_HOST}{_TAIL})", re.IGNORECASE, _of_match),
        (
            rf"(?<![\w.@-])(?P<address>{_LABEL}(?:\.{_LABEL}){{0,3}}\.(?:{_DOMAINS}|{_WORDY_DOMAINS}(?=/\w)){_TAIL})(?![\w@]|\.\w)",
            0,
            _of_match,
        ),
        (rf"(?<![\w.])(?P<address>[\w-]{{0,80}}\.{_FILES})(?![\w@]|\.\w)", 0, _of_match),
        (
            r"(?<![\w.~/])(?P<address>(?:[A-Za-z]:|~)(?:[/\\][\w.-]{1,80}){1,30}|(?:[/\\][\w.-]{1,80}){2,30})",
            0,
            _of_match,
        ),
        (r"(?<![\w&])(?P<mark>[#@])(?P<words>[A-Za-z]\w{0,80})", 0, _tag),
    )
)
"""Addresses are found from the surest form to the least sure."""
