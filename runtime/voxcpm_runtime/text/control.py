"""Voice design and style control: a description in parentheses before the text (VoxCPM2, upstream `cli.py`)."""

from __future__ import annotations

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError

_OPENING, _CLOSING = "(（", ")）"


def described(control: str | None) -> str:
    """The description in a control, such as "warm, slow"; empty for None or white space.

    Parentheses around the whole control, ASCII or full-width, are removed, since `controlled` adds them. Raises
    InputError for a parenthesis without a partner, which would end the description early.
    """
    description = (control or "").strip()
    while (
        description.startswith(tuple(_OPENING))
        and _first_closed(description, control) == len(description) - 1
    ):
        description = description[1:-1].strip()
    _first_closed(description, control)
    return description


def checked_control(control: str | None, a: Architecture, *, continues: bool) -> str:
    """The description in a call's control; empty for none. continues: whether the call has a prompt to continue.

    Raises InputError on a generation before VoxCPM2, together with a prompt, and for a parenthesis without a partner.
    """
    description = described(control)
    if not description:
        return ""
    require_references(
        a, "control (voice design, style control)", "leave it out, or give a prompt to continue"
    )
    if continues:
        raise InputError(
            "control cannot be used together with a prompt to continue, which brings its own style; "
            "give one of them, or the audio as a reference"
        )
    return description


def controlled(text: str, description: str) -> str:
    """The text with the description in parentheses before it; the text alone if the description is empty."""
    return f"({description}){text}" if description else text


def without_control(text: str) -> str:
    """What is spoken of a text: all but the description in parentheses, ASCII or full-width, that it begins with."""
    depth = 0
    for index, char in enumerate(text):
        depth += (char in _OPENING) - (char in _CLOSING)
        if depth <= 0:
            return text[index + 1 :] if index else text
    return text


def require_references(a: Architecture, what: str, instead: str) -> None:
    """Raises InputError for a generation before VoxCPM2; the message says `what` it lacks and what to do `instead`."""
    if not a.traits.takes_reference:
        raise InputError(f"{what} needs VoxCPM2, and this bundle is of an earlier VoxCPM; {instead}")


def _first_closed(description: str, control: str | None) -> int | None:
    """Index of the parenthesis that closes the first one; None without parentheses."""
    depth, closed = 0, None
    for index, char in enumerate(description):
        depth += (char in _OPENING) - (char in _CLOSING)
        if depth < 0:
            break
        if char in _CLOSING and depth == 0 and closed is None:
            closed = index
    if depth:
        raise InputError(
            f"control: expected a description such as 'warm, slow', got {control!r}, with a parenthesis that has no "
            "partner; leave it out"
        )
    return closed
