"""Fields that ElevenLabs' requests and websockets share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from voxcpm_constants.bounds import MAX_SPEED, MIN_SPEED
from voxcpm_runtime import Word
from voxcpm_server.errors import ApiError

_DEFAULT_FORMAT = "mp3_44100_128"
_FORMAT = re.compile(r"(mp3|opus|pcm|wav|ulaw|alaw)_([0-9]{4,5})(_[0-9]+)?")


def invalid_field(field: str, message: str) -> ApiError:
    """The error of a field. field: its name, with that of a field in it after a dot."""
    return ApiError(400, f"{field}: {message}", param=field.partition(".")[0])


def output_format(query: Mapping[str, str]) -> tuple[str, int]:
    """The codec and sample rate of `output_format` in a URL. Raises ApiError (400) for an unknown form."""
    given = query.get("output_format", _DEFAULT_FORMAT)
    if (form := _FORMAT.fullmatch(given)) is None:
        expected = "expected a format such as pcm_24000, mp3_44100_128 or opus_48000_32"
        raise invalid_field("output_format", f"{expected}, got {given!r}")
    return form[1], int(form[2])


def checked_speed(voice_settings: Any) -> float:
    """The speed in `voice_settings`; 1 without one. Raises ApiError (400) out of range."""
    speed = voice_settings.get("speed") if isinstance(voice_settings, dict) else None
    speed = 1.0 if speed is None else speed
    if type(speed) not in (int, float) or not MIN_SPEED <= speed <= MAX_SPEED:
        raise invalid_field("voice_settings.speed", f"expected {MIN_SPEED} to {MAX_SPEED:g}")
    return float(speed)


def split_after(text: str, words: Sequence[Word]) -> tuple[str, str]:
    """The text up to the last of the words and the white space after it, and the rest."""
    at = 0
    for word in words:
        at = max(at, text.find(word.text, at) + len(word.text))
    at = len(text) - len(text[at:].lstrip())
    return text[:at], text[at:]
