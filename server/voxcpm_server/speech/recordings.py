"""Recordings that clients send: their length is looked at before they are decoded, and no more than that is decoded."""

from __future__ import annotations

import base64
import binascii

from voxcpm_runtime import Audio, InputError, decode_audio
from voxcpm_server.errors import ApiError

_RATES = (8_000, 192_000)
Recording = tuple[Audio, int]
"""Samples (samples,) in [-1, 1], and their rate in Hz."""


def decoded_base64(text: str, field: str) -> bytes:
    """The bytes that a field has in base64, with or without `data:…;base64,` before it. Raises ApiError (400)."""
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, f"{field}: expected an audio file in base64", param=field) from None


def decoded_recording(content: bytes, field: str, max_seconds: float) -> Recording:
    """The samples of an audio file.

    Raises ApiError (400) for what is no audio, and for a recording that is too long: by its header before it is
    decoded, and if the header is wrong, as soon as that is known.
    """
    try:
        return decode_audio(content, field, max_seconds=max_seconds, rates=_RATES)
    except InputError as error:
        raise ApiError(400, str(error), param=field) from None
