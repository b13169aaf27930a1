"""Decoding of recordings, in bounded memory: a recording beyond the limit is rejected before it is decoded.

Files are decoded by libsndfile, and a truncated one gives the samples that it has, as upstream's `librosa.load` does.
"""

from __future__ import annotations

import io

import numpy as np
import soundfile

from voxcpm_constants.bounds import (
    MAX_CHANNELS,
    MAX_RATE,
    MAX_RECORDING_SAMPLES,
    MAX_RECORDING_SECONDS,
)
from voxcpm_constants.errors import InputError
from voxcpm_runtime.argument_types import real_number, text_argument, whole_number, wrong_type
from voxcpm_runtime.audio.pcm import Audio

_BLOCK_FRAMES = 1 << 16
# libsndfile's number of frames for a stream whose header has none.
_UNKNOWN_FRAMES = 2**62


def decode_audio(
    content: bytes,
    name: str,
    *,
    max_seconds: float = MAX_RECORDING_SECONDS,
    rates: tuple[int, int] = (1, MAX_RATE),
) -> tuple[Audio, int]:
    """The samples (samples,) of an audio file in [-1, 1], channels averaged, and their rate in Hz.

    name: its name in messages. rates: lowest and highest sample rate in Hz.

    Raises InputError for content that is not audio, and for a recording that is longer than `max_seconds` or has more
    than MAX_RECORDING_SAMPLES: by its header before decoding, or, if the header has no length, while decoding.
    """
    if not isinstance(content, bytes | bytearray | memoryview):
        raise wrong_type(content, "content", "the bytes of an audio file")
    text_argument(name, "name")
    maximum = real_number(max_seconds)
    if not 0 < maximum <= MAX_RECORDING_SECONDS:
        raise wrong_type(max_seconds, "max_seconds", f"a number of seconds up to {MAX_RECORDING_SECONDS:g}")
    if not isinstance(rates, tuple) or len(rates) != 2:
        raise wrong_type(rates, "rates", "the lowest and the highest sample rate in Hz")
    lowest, highest = (whole_number(rate, "a rate", 1, "Hz") for rate in rates)
    if not content:
        raise InputError(f"{name}: expected an audio file, but it is empty, or was read to its end before")
    try:
        with _SequentialFile(_Content(content)) as file:
            rate, channels = file.samplerate, file.channels
            fits = lowest <= rate <= highest and channels <= MAX_CHANNELS
            samples = _samples(file, maximum, name) if fits else None
    except InputError:
        raise
    except (soundfile.LibsndfileError, ValueError, RuntimeError) as error:
        reason = getattr(error, "error_string", "its header contradicts itself")
        raise InputError(f"{name}: expected an audio file, but it cannot be read ({reason})") from None
    if samples is None:
        raise InputError(
            f"{name}: expected {lowest} to {highest} Hz and at most {MAX_CHANNELS} channels, "
            f"got {rate} Hz and {channels}"
        )
    return samples, rate


class _Content(io.BytesIO):
    """The bytes of a file. A damaged header may lead to a negative offset, for which soundfile prints a traceback."""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Seek to the offset, or stay if it is negative."""
        try:
            return super().seek(offset, whence)
        except ValueError:
            return self.tell()


class _SequentialFile(soundfile.SoundFile):
    """A file that is read from beginning to end.

    soundfile seeks after each block of a seekable file, which fails at the end of a FLAC without a length.
    """

    def seekable(self) -> bool:
        """False, so that soundfile never seeks."""
        return False


def check_length(frames: int, rate: int, name: str, max_seconds: float = MAX_RECORDING_SECONDS) -> None:
    """Raises InputError for more than `max_seconds`, or MAX_RECORDING_SAMPLES samples per channel."""
    if frames > int(max_seconds * rate):
        raise InputError(f"{name}: longer than {max_seconds:g} s, the maximum of a recording; cut it")
    if frames > MAX_RECORDING_SAMPLES:
        raise InputError(
            f"{name}: more than {MAX_RECORDING_SAMPLES} samples, the maximum of a recording: at its {rate} Hz that is "
            f"{MAX_RECORDING_SAMPLES / rate:.0f} s; resample it to 48000 Hz or less, or cut it"
        )


def mean_of_channels(samples: Audio) -> Audio:
    """The mean (samples,) of samples (samples, channels); NaN and infinity propagate."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean: Audio = samples.mean(axis=1, dtype=np.float32)
    return mean


def _samples(file: soundfile.SoundFile, max_seconds: float, name: str) -> Audio:
    """All samples (samples,), channels averaged. Raises InputError if there are too many, or the header says so."""
    known = file.frames < _UNKNOWN_FRAMES
    if known:
        check_length(file.frames, file.samplerate, name, max_seconds)
    # One array, so that no sample is held twice. The system allocates its pages when they are written to, so a header
    # with too large a number costs nothing.
    samples = np.empty(file.frames if known else _BLOCK_FRAMES, np.float32)
    decoded = 0
    while len(block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
        end = decoded + len(block)
        check_length(end, file.samplerate, name, max_seconds)
        if end > len(samples):
            # No other array shares its memory.
            samples.resize(max(end, 2 * len(samples)), refcheck=False)
        samples[decoded:end] = block[:, 0] if file.channels == 1 else mean_of_channels(block)
        decoded = end
    samples.resize(decoded, refcheck=False)
    return samples
