"""Text as callers give it: its checks, and the control in parentheses before it (VoxCPM2, upstream `cli.py`)."""

from __future__ import annotations

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.bounds import MAX_CHARACTERS
from voxcpm_constants.errors import InputError

_OPENING, _CLOSING = "(（", ")）"


def checked_text(text: object, what: str, argument: str = "text") -> str:
    """The text, unchanged. Raises InputError if it is blank, too long, not a str, or not valid Unicode.

    what: the name of the text in the message. argument: its name among the arguments of `speak`.
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
    """The text, unchanged. Raises InputError for half of a surrogate pair, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"the {what} is not valid Unicode; expected UTF-8", argument=argument) from None
    return text


def joined_surrogates(text: str) -> tuple[str, str]:
    """A fragment with its surrogate pairs joined, and the high surrogate at its end, whose pair is still to come.

    Raises InputError for any other half of a pair.
    """
    high = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    try:
        return text.removesuffix(high).encode("utf-16-le", "surrogatepass").decode("utf-16-le"), high
    except UnicodeDecodeError:
        return valid_unicode(text, "text"), ""


def described(control: str | None) -> str:
    """The description in a control, such as "warm, slow", without parentheses around it; empty for none.

    Raises InputError for an unbalanced parenthesis, which would end the description early.
    """
    description = (control or "").strip()
    depth = 0
    for char in description:
        depth += (char in _OPENING) - (char in _CLOSING)
        if depth < 0:
            break
    if depth:
        raise InputError(
            f"control: expected a description such as 'warm, slow', got {control!r}, with a parenthesis that has no "
            "partner; leave it out"
        )
    while description and not without_control(description):
        description = description[1:-1].strip()
    return description


def checked_control(control: str | None, a: Architecture, *, continues: bool) -> str:
    """The description in a call's control. continues: whether the call has a prompt to continue.

    Raises InputError on a generation before VoxCPM2, together with a prompt, and for an unbalanced parenthesis.
    """
    description = described(control)
    if description:
        require_references(
            a, "control (voice design, style control)", "leave it out, or give a prompt to continue"
        )
    if description and continues:
        raise InputError(
            "control cannot be used together with a prompt to continue, which brings its own style; "
            "give one of them, or the audio as a reference"
        )
    return description


def controlled(text: str, description: str) -> str:
    """The text with the description, if there is one, in parentheses before it."""
    return f"({description}){text}" if description else text


def without_control(text: str) -> str:
    """The text without the description in parentheses, ASCII or full-width, that it begins with."""
    depth = 0
    for index, char in enumerate(text):
        depth += (char in _OPENING) - (char in _CLOSING)
        if depth <= 0:
            return text[index + 1 :] if index else text
    return text


def require_references(a: Architecture, what: str, instead: str) -> None:
    """Raises InputError before VoxCPM2. what: the feature that it lacks. instead: what to do."""
    if not a.traits.takes_reference:
        raise InputError(f"{what} needs VoxCPM2, and this bundle is of an earlier VoxCPM; {instead}")
