"""The control of VoxCPM2: a description of voice or style in parentheses before the text (upstream `cli.py`)."""

from __future__ import annotations

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError

_OPENING, _CLOSING = "(（", ")）"


def described(control: str | None) -> str:
    """The description in a control, such as "warm, slow", without enclosing parentheses; empty for None.

    Raises InputError for an unmatched parenthesis, which would end the description early.
    """
    description = (control or "").strip()
    depth = 0
    for char in description:
        depth += (char in _OPENING) - (char in _CLOSING)
        if depth < 0:
            break
    if depth:
        raise InputError(
            f"control: expected a description such as 'warm, slow', got {control!r}, with an unmatched "
            "parenthesis; remove it"
        )
    while description and not without_control(description):
        description = description[1:-1].strip()
    return description


def checked_control(control: str | None, a: Architecture, *, continues: bool) -> str:
    """The description in a call's control. continues: whether the call has a prompt to continue.

    Raises InputError before VoxCPM2, together with a prompt, and for an unmatched parenthesis.
    """
    description = described(control)
    if description:
        require_references(
            a, "control (voice design, style control)", "leave it out, or give a prompt to continue"
        )
    if description and continues:
        raise InputError(
            "control cannot be used together with a prompt to continue, which has its own style; "
            "give one of them, or the audio as a reference"
        )
    return description


def with_control(text: str, description: str) -> str:
    """The text, prefixed with the description in parentheses if there is one."""
    return f"({description}){text}" if description else text


def without_control(text: str) -> str:
    """The text without a leading description in parentheses, ASCII or full-width."""
    depth = 0
    for index, char in enumerate(text):
        depth += (char in _OPENING) - (char in _CLOSING)
        if depth <= 0:
            return text[index + 1 :] if index else text
    return text


def require_references(a: Architecture, what: str, instead: str) -> None:
    """Raises InputError before VoxCPM2. what: the feature that needs it. instead: what to do."""
    if not a.traits.takes_reference:
        raise InputError(f"{what} needs VoxCPM2, but this bundle is an earlier VoxCPM; {instead}")
