"""Input text: checks, and the form in which it is said."""

from __future__ import annotations

import re
import unicodedata

from voxcpm_constants.bounds import MAX_CHARACTERS
from voxcpm_constants.errors import InputError
from voxcpm_runtime.text.normalization import normalized


def checked_text(text: object, what: str, argument: str = "text") -> str:
    """The text, unchanged. Raises InputError if it is blank, too long, not a str, or not valid Unicode.

    what: the name of the text in the message, such as "text". argument: its name among the arguments of `speak`.
    """
    if not isinstance(text, str):
        raise InputError(
            f"the {what} is no text but {type(text).__name__}; expected a str", argument=argument
        )
    if len(text) > MAX_CHARACTERS:
        raise InputError(
            f"the {what} has {len(text)} characters; expected at most {MAX_CHARACTERS}: give it in parts",
            argument=argument,
        )
    if not text.strip():
        raise InputError(f"the {what} is empty; expected something to say", argument=argument)
    return valid_unicode(text, what, argument)


def valid_unicode(text: str, what: str, argument: str = "text") -> str:
    """The text, unchanged. Raises InputError for half of a surrogate pair, which no file in UTF-8 has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"the {what} is not valid Unicode; expected UTF-8", argument=argument) from None
    return text


def joined_surrogates(text: str) -> tuple[str, str]:
    """A text with its surrogate pairs joined, and the high surrogate that ends it, if its pair was cut there.

    Raises InputError for any other half of a pair.
    """
    high = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    try:
        return text.removesuffix(high).encode("utf-16-le", "surrogatepass").decode("utf-16-le"), high
    except UnicodeDecodeError:
        return valid_unicode(text, "text"), ""


def one_line(text: str) -> str:
    """The text with each run of white space replaced by one space (upstream `core.py`)."""
    return re.sub(r"\s+", " ", text)


def said_text(text: str, *, normalize: bool, spelled: bool) -> str:
    """The text on one line, and with `normalize` as `normalized` rewrites it.

    spelled: for a vocabulary of letters. Raises InputError if nothing is left to say, and the errors of `normalized`.
    """
    if not normalize:
        return one_line(text)
    said = normalized(one_line(text), spelled=spelled)
    if not said.strip():
        raise InputError(
            "nothing is left of the text without its emoji, code and markup; expected words to say",
            argument="text",
        )
    return said


def parted(transcript: str) -> str:
    """The transcript with a space to separate it from the next text, if its script uses spaces."""
    last = transcript[-1:]
    return (
        transcript
        if last.isspace() or unicodedata.east_asian_width(last or " ") in "WF"
        else f"{transcript} "
    )
