"""Recordings that clients send: their length is looked at before they are decoded, and no more than that is decoded."""

from __future__ import annotations

import base64
import binascii
import io

import soundfile

from voxcpm_runtime import Audio
from voxcpm_server.errors import ApiError

_MOST_CHANNELS = 8
_LEAST_RATE, _GREATEST_RATE = 8_000, 192_000
# libsndfile's number for a stream whose header does not say it.
_UNKNOWN_FRAMES = 2**62
Recording = tuple[Audio, int]
"""Samples (samples, channels) in [-1, 1], and their rate in Hz."""


def decoded_base64(text: str, field: str) -> bytes:
    """The bytes that a field has in base64, with or without `data:…;base64,` before it. Raises ApiError (400)."""
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, f"{field}: expected an audio file in base64", param=field) from None


def decoded_recording(content: bytes, field: str, most_seconds: float) -> Recording:
    """The samples of an audio file.

    Raises ApiError (400) for what is no audio, and for a recording that is too long: by its header before it is
    decoded, and if the header is wrong, as soon as that is known.
    """

    def refused(why: str) -> ApiError:
        return ApiError(400, f"{field}: {why}", param=field)

    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            if not _LEAST_RATE <= file.samplerate <= _GREATEST_RATE or file.channels > _MOST_CHANNELS:
                raise refused(
                    f"expected {_LEAST_RATE} to {_GREATEST_RATE} Hz and at most {_MOST_CHANNELS} channels, "
                    f"got {file.samplerate} Hz and {file.channels}"
                )
            most = int(most_seconds * file.samplerate)
            too_long = f"longer than {most_seconds:g} s, the most of a recording here"
            if most < file.frames < _UNKNOWN_FRAMES:
                raise refused(too_long)
            samples = file.read(most + 1, dtype="float32", always_2d=True)
            if len(samples) > most:
                raise refused(too_long)
            rate = file.samplerate
    except (soundfile.LibsndfileError, ValueError, RuntimeError) as error:
        reason = getattr(error, "error_string", "its header contradicts itself")
        raise refused(f"expected an audio file, but it cannot be read ({reason})") from None
    return samples, rate
