"""The control of VoxCPM2: a description of voice or style in parentheses before the text (upstream `cli.py`)."""

from __future__ import annotations

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.bounds import MAX_SENTENCE_CHARACTERS
from voxcpm_constants.errors import InputError
from voxcpm_runtime.text.sentences import Sentence, SentenceCutter

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


def leading_control(text: str) -> tuple[str, int]:
    """The description in parentheses that a text begins with, and the index of the text after it (upstream's README).

    ("", 0) without one. Raises InputError if nothing follows it.
    """
    start = len(text) - len(text.lstrip())
    if text[start : start + 1] not in tuple(_OPENING):
        return "", 0
    rest = without_control(text[start:])
    end = len(text) - len(rest.lstrip())
    description = described(text[start : len(text) - len(rest)]) if end > start else ""
    if not description:
        return "", 0
    if not rest.strip():
        raise InputError(
            f"expected text after the control in parentheses, got only {text.strip()[:60]!r}; add what to say",
            argument="text",
        )
    return description, end


class ControlledCutter:
    """A `SentenceCutter` whose first sentence has the whole control in parentheses that the text begins with."""

    def __init__(self) -> None:
        self._cutter = SentenceCutter()
        self._start: str | None = ""  # Sentences of a control that is not followed by text yet; None after it

    def push(self, fragment: str) -> list[Sentence]:
        """Add text, and return the sentences that are now complete."""
        return self._joined(self._cutter.push(fragment))

    def flush(self) -> list[Sentence]:
        """Return the remaining sentences, as if the text ended here."""
        sentences = self._joined(self._cutter.flush())
        left, self._start = self._start, None
        return [Sentence(left, ends_paragraph=False), *sentences] if left else sentences

    def _joined(self, sentences: list[Sentence]) -> list[Sentence]:
        while self._start is not None and sentences:
            text = self._start + sentences[0].text
            opening = text.strip()
            is_control = opening[:1] in tuple(_OPENING) and without_control(opening) in ("", opening)
            if is_control and len(text) < MAX_SENTENCE_CHARACTERS:
                self._start, sentences = text, sentences[1:]
            else:
                self._start, sentences = None, [sentences[0]._replace(text=text), *sentences[1:]]
        return sentences


def require_references(a: Architecture, what: str, instead: str) -> None:
    """Raises InputError before VoxCPM2. what: the feature that needs it. instead: what to do."""
    if not a.traits.takes_reference:
        raise InputError(f"{what} needs VoxCPM2, but this bundle is an earlier VoxCPM; {instead}")
