"""Voice design and style control: a description in parentheses before the text (VoxCPM2, upstream `cli.py`)."""

from __future__ import annotations

from voxcpm_constants.errors import InputError

_OPENING, _CLOSING = "(（", ")）"


def controlled_text(text: str, control: str | None, *, generation: str, continues: bool) -> str:
    """The text with its control in parentheses before it, as upstream's `--control` writes it.

    control: what the voice or the style is to be, such as "warm, slow"; None or blank is none. Parentheses around all
    of it, ASCII or full-width, are taken for the ones that this adds. generation: `architecture.generation`.
    continues: whether there is a prompt to continue, whose transcript would come before the control.

    A text without words is given back as it is, for whoever checks texts to refuse.

    Raises InputError for a control of an earlier generation than VoxCPM2, together with a prompt, or with a
    parenthesis that has no partner and would end it early.
    """
    described = _described(control)
    if not described:
        return text
    require_voxcpm2(
        generation, "control (voice design, style control)", "leave it out, or give a prompt to continue"
    )
    if continues:
        raise InputError(
            "control cannot be used together with a prompt to continue, which brings its own style; "
            "give one of them, or the audio as a reference"
        )
    return f"({described}){text}" if isinstance(text, str) and text.strip() else text


def require_voxcpm2(generation: str, what: str, instead: str) -> None:
    """Raises InputError, naming what is lacking and what to do instead, for an earlier generation."""
    if generation != "voxcpm2":
        raise InputError(f"{what} needs VoxCPM2, and this bundle is of an earlier VoxCPM; {instead}")


def require_reference(generation: str) -> None:
    """Raises InputError for a generation that cannot speak with the voice of a reference."""
    require_voxcpm2(generation, "a reference voice", "give a prompt")


def _described(control: str | None) -> str:
    """The control without the parentheses around all of it."""
    described = (control or "").strip()
    while described.startswith(tuple(_OPENING)) and _first_closed(described, control) == len(described) - 1:
        described = described[1:-1].strip()
    _first_closed(described, control)
    return described


def _first_closed(described: str, control: str | None) -> int | None:
    """Where the first parenthesis that is opened is closed; None without parentheses."""
    depth, closed = 0, None
    for index, char in enumerate(described):
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
