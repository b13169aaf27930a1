"""Recordings that libsndfile cannot read, such as a phone's: macOS's own decoder, or PyAV where it is installed."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from voxcpm_constants.errors import InputError, install_command
from voxcpm_runtime.audio.pcm import Audio

_AFCONVERT = "/usr/bin/afconvert"
_TIMEOUT_SECONDS = 120
# What QuickTime and MPEG-4 (AAC, ALAC), WebM, CAF and AAC files begin with
_SIGNATURE = re.compile(rb"(?s).{4}(?:ftyp|moov|mdat)|\x1aE\xdf\xa3|caff|\xff[\xf1\xf9]")


def is_phone_format(content: bytes) -> bool:
    """Whether a file is m4a, mov, webm, caf or AAC by its first bytes."""
    return _SIGNATURE.match(content) is not None


def decode_with_system(content: bytes) -> bytes | None:
    """The file as WAV, by macOS's decoder; None elsewhere, and if it cannot read the file."""
    if sys.platform != "darwin" or not Path(_AFCONVERT).exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "recording"), Path(folder, "recording.wav")
        source.write_bytes(content)
        command = [_AFCONVERT, "-f", "WAVE", "-d", "LEF32", str(source), str(target)]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT_SECONDS)  # noqa: S603
        except (OSError, subprocess.SubprocessError):
            return None
        return target.read_bytes() if done.returncode == 0 and target.exists() else None


@contextlib.contextmanager
def opened_with_av(content: bytes, name: str) -> Iterator[tuple[int, Iterator[Audio]]]:
    """The sample rate of a file in Hz, and its blocks (frames, channels), by PyAV.

    Raises InputError if PyAV is missing or cannot read the file, also while its blocks are read.
    """
    try:
        import av
    except ImportError:
        raise InputError(
            f"{name}: this format needs PyAV; use WAV, FLAC, MP3, OGG or AIFF, or install it with: "
            f"{install_command('serve')}"
        ) from None
    try:
        with av.open(io.BytesIO(content), "r") as file:
            if not file.streams.audio:
                raise InputError(f"{name}: expected a recording, but the file has no sound")
            rate = int(file.streams.audio[0].rate)
            to_float = av.AudioResampler(format="fltp", rate=rate)
            parts = itertools.chain.from_iterable(map(to_float.resample, file.decode(audio=0)))
            yield rate, (part.to_ndarray().T.astype(np.float32) for part in parts)
    except av.error.FFmpegError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{name}: expected an audio file, but it cannot be read ({reason})") from None
