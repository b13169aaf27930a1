"""Texts for a voice whose vocabulary is letters and a few marks: everything in English words, with a stop at the end.

Published VoxCPM vocabularies have every character, so texts for them stay unchanged.
"""

from __future__ import annotations

import functools
import unicodedata

from voxcpm_constants.errors import InputError
from voxcpm_runtime.text.normalization import english_room
from voxcpm_runtime.text.sentences import sentences
from voxcpm_runtime.text.substitutions import rules, substituted
from voxcpm_runtime.text.tokenizer import TextTokenizer
from voxcpm_runtime.text.words import parted

_PAUSES = ";:()[]{}–—"
"""Marks that are read as a comma if the vocabulary lacks them."""
_STOPS = ".!?"
_MAX_SHOWN = 60
"""Characters of a text in an error."""
_MAX_LISTED = 10
# What was replaced leaves spaces before marks, and commas beside other marks.
_TIDYING = rules(
    {
        r"\s+": " ",
        r"[ ,]+(?=[,.!?])": "",
        r"(?<=[.!?])[ ,]*,": "",
        r"\.+": ".",
        r"\.(?=[!?])|(?<=[!?])\.": "",
        r",(?=[^\W_])": ", ",
        r"(?<=[.!?])(?=[^\W_])": " ",
    }
)


def spelled(text: str, tokenizer: TextTokenizer, argument: str = "text") -> str:
    """The text as it is read aloud, for a vocabulary of letters; unchanged if the vocabulary has digits.

    The result has small letters and the vocabulary's marks. It is not to be read again, because the capitals are gone
    that told the name Max from an abbreviation. Raises InputError for letters of other alphabets, and if nothing is
    left to say.
    """
    if not tokenizer.has_letters_only:
        return text
    said: list[str] = []
    # By sentences, so that the stop after an abbreviation is not lost where it also ends a sentence.
    for sentence in sentences(text):
        read = _known(_read_aloud(sentence.text), tokenizer)
        said.append(_tidy(read))
    whole = " ".join(filter(None, said))
    if left := tokenizer.unknown_characters("".join(dict.fromkeys(whole))):
        raise InputError(
            f"this voice knows the letters a to z only, and cannot say {listed(left)}; write the text in English "
            "letters",
            argument=argument,
        )
    if not whole:
        raise InputError(
            f"nothing is left to say of {text[:_MAX_SHOWN]!r}: this voice knows letters only",
            argument=argument,
        )
    return whole


def check_sayable(text: str, tokenizer: TextTokenizer) -> None:
    """Raises InputError, as `spelled` does, for a text with letters of other alphabets, without reading it aloud."""
    if tokenizer.has_letters_only:
        for char in dict.fromkeys(text):
            if char.isalpha() and not char.isascii():
                spelled(f"a {char} a", tokenizer)


def listed(characters: str) -> str:
    """Characters one by one, as a message shows them: the first few, and how many more there are."""
    more = f" and {len(characters) - _MAX_LISTED} more" if len(characters) > _MAX_LISTED else ""
    return ", ".join(map(repr, characters[:_MAX_LISTED])) + more


def spelled_transcript(transcript: str, tokenizer: TextTokenizer) -> str:
    """The transcript as `spelled` rewrites it, with a space to separate it from the text; empty if it was empty."""
    if not transcript or not tokenizer.has_letters_only:
        return transcript
    return f"{spelled(transcript, tokenizer, 'prompt_text')} "


def continued_transcript(said: str, tokenizer: TextTokenizer) -> str:
    """The transcript of a text that other segments continue, before it is spelled; transcripts are joined as they are.

    A blank line ends the sentence for a voice of letters, so that each text of a joined transcript is spelled as it
    was alone, also if it ended in the middle of a sentence.
    """
    return f"{said}\n\n" if tokenizer.has_letters_only else parted(said)


# A text is read again for each way of cutting it that is tried.
@functools.lru_cache(maxsize=256)
def _read_aloud(sentence: str) -> str:
    return sentence if (english := english_room()) is None else english.read_aloud(sentence)


def _known(text: str, tokenizer: TextTokenizer) -> str:
    """The text in small letters, with e for é and a comma for a long dash, as far as the vocabulary lacks them."""
    text = text.lower()
    # Each character once: whether a vocabulary has it does not depend on its neighbours.
    unknown = tokenizer.unknown_characters("".join(dict.fromkeys(text)))
    return text.translate({ord(char): _replacement(char) for char in unknown}) if unknown else text


def _replacement(char: str) -> str:
    if char in _PAUSES:
        return ","
    if not char.isalpha():
        return " "
    return "".join(c for c in unicodedata.normalize("NFKD", char) if not unicodedata.combining(c))


def _tidy(text: str) -> str:
    """The sentence with one space between words and one mark between clauses; empty if it has no word."""
    tidy = substituted(text, _TIDYING).strip(" ,")
    if not any(map(str.isalpha, tidy)):
        return ""
    tidy = tidy.lstrip(" ,.!?-'") if tidy[0] in ".!?,-" else tidy
    return tidy if tidy[-1] in _STOPS else f"{tidy}."
