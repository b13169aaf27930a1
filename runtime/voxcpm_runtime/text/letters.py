"""Texts for a voice whose vocabulary is letters and a few marks: numbers in words, plain quotes, a full stop.

Published VoxCPM vocabularies have every character, so texts for them stay unchanged.
"""

from __future__ import annotations

import re
import unicodedata

from voxcpm_constants.errors import InputError
from voxcpm_runtime.text.number_words import inflect_engine
from voxcpm_runtime.text.tokenizer import TextTokenizer

# Marks that such a vocabulary lacks -> what is read instead.
_READ_AS = str.maketrans(
    {
        "’": "'", "‘": "'", "“": "", "”": "", '"': "", "…": ".", "–": ",", "—": ",", ";": ",", ":": ",",
        "(": ",", ")": ",", "&": " and ", "%": " percent ", "+": " plus ", "=": " equals ", "@": " at ",
    }
)  # fmt: skip
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:st|nd|rd|th)?", re.IGNORECASE)
_STOPS = ".!?"
# The replacements leave spaces before marks, and commas beside other marks.
_TIDYING = (
    (r"\s+", " "),
    (r"\s+([,.!?])", r"\1"),
    (r",+([.!?])", r"\1"),
    (r"([.!?]),+", r"\1"),
    (r",+", ","),
    (r",(?=\w)", ", "),
)


def spelled(text: str, tokenizer: TextTokenizer) -> str:
    """The text rewritten for a vocabulary of letters; unchanged if the vocabulary has digits.

    Raises InputError for characters that the voice cannot say, and if nothing is left to say.
    """
    if not is_of_letters(tokenizer):
        return text
    words = _NUMBER.sub(lambda number: _in_words(number[0]), text)
    unknown = set(tokenizer.unknown_characters(words))
    plain = "".join(_plain(char) if char in unknown else char for char in words)
    for untidy, tidied in _TIDYING:
        plain = re.sub(untidy, tidied, plain)
    tidy = plain.strip(" ,")
    if left := tokenizer.unknown_characters(tidy):
        raise InputError(f"this voice knows letters and simple punctuation only, and cannot say {left!r}")
    if not any(char.isalpha() for char in tidy):
        raise InputError(f"nothing is left to say of {text!r}: this voice knows letters only")
    return tidy if tidy[-1] in _STOPS else f"{tidy}."


def spelled_transcript(transcript: str, tokenizer: TextTokenizer) -> str:
    """The transcript as `spelled` rewrites it, with a space to separate it from the text; empty if it was empty."""
    return f"{spelled(transcript, tokenizer)} " if transcript and is_of_letters(tokenizer) else transcript


def is_of_letters(tokenizer: TextTokenizer) -> bool:
    """Whether the vocabulary is letters and a few marks, without digits."""
    return bool(tokenizer.unknown_characters("0123456789"))


def _plain(char: str) -> str:
    """What replaces a character that the vocabulary lacks: e for é, a comma for a long dash."""
    return "".join(
        c for c in unicodedata.normalize("NFKD", char.translate(_READ_AS)) if not unicodedata.combining(c)
    )


def _in_words(number: str) -> str:
    return f"{inflect_engine().number_to_words(number.replace(',', ''), andword='').replace(',', '')}"
