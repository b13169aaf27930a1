"""A recording's samples: its length, if it says one, is looked at first; no more than the bound is decoded."""

from __future__ import annotations

import io
import re

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
# libsndfile's number for a stream whose header does not say it.
_UNKNOWN_FRAMES = 2**62
# What libsndfile notes where a header says more than the file has. Audio in RIFF and FORM has a line of its own.
_NOTED = re.compile(r"^ *(?!RIFF|FORM)(\w[\w ]*?) *: (\d+) \(should be (\d+)\)$", re.MULTILINE)
# A program that writes to a pipe does not know the size, and says one that no file within the bounds has.
_MIN_PLACEHOLDER = 2**31 - 2**16
# An encoder's first and last frame may be left out.
_MP3_SLACK_FRAMES = 2 * 1152
_RIFF, _RIFF_HEADER_BYTES = b"RIFF", 12
_OGG, _OGG_HEADER_BYTES, _OGG_LAST = b"OggS", 27, 4


def decode_audio(
    content: bytes,
    name: str,
    *,
    max_seconds: float = MAX_RECORDING_SECONDS,
    rates: tuple[int, int] = (1, MAX_RATE),
) -> tuple[Audio, int]:
    """The samples (samples,) of an audio file in [-1, 1], channels averaged, and their rate in Hz.

    name: its name in messages. rates: lowest and highest sample rate in Hz.

    Raises InputError for what is no audio, for a recording that is longer than `max_seconds` or has more than
    MAX_RECORDING_SAMPLES – by its header before it is decoded, and if the header is wrong or without a length, as what
    is written to a pipe has, as soon as that is known –, and for one that was cut off.
    """
    if not isinstance(content, bytes | bytearray | memoryview):
        raise wrong_type(content, "content", "the bytes of an audio file")
    content = bytes(content)
    text_argument(name, "name")
    maximum = real_number(max_seconds)
    if not 0 < maximum <= MAX_RECORDING_SECONDS:
        raise wrong_type(max_seconds, "max_seconds", f"a number of seconds up to {MAX_RECORDING_SECONDS:g}")
    if not isinstance(rates, tuple) or len(rates) != 2:
        raise wrong_type(rates, "rates", "the lowest and the highest sample rate in Hz")
    for rate in rates:
        whole_number(rate, "a rate", 1, "Hz")
    if not content:
        raise InputError(f"{name}: expected an audio file, but it is empty, or read to its end already")
    known = True
    try:
        with _InOnePass(_Content(_with_data_to_the_end(content))) as file:
            _check_form(file, name, rates)
            rate, frames, known = file.samplerate, file.frames, file.frames < _UNKNOWN_FRAMES
            samples = _samples(file, maximum, name)
            slack = _MP3_SLACK_FRAMES if file.format == "MP3" else 0
            noted = file.extra_info
    except InputError:
        raise
    except (soundfile.LibsndfileError, ValueError, RuntimeError) as error:
        reason = getattr(error, "error_string", "its header contradicts itself")
        if not known:
            reason = "it has no length in its header, and it was cut off or damaged"
        raise InputError(f"{name}: expected an audio file, but it cannot be read ({reason})") from None
    if (known and len(samples) < frames - slack) or _is_cut_off(content, noted):
        raise InputError(
            f"{name}: cut off: its header says that there is more than its {len(samples) / rate:.2f} s; copy it again"
        )
    return samples, rate


class _Content(io.BytesIO):
    """The bytes of a file. A damaged header may ask for a place before them, and soundfile print a traceback."""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to that place, or stay if there is none."""
        try:
            return super().seek(offset, whence)
        except ValueError:
            return self.tell()


class _InOnePass(soundfile.SoundFile):
    """A file that is read from its beginning to its end.

    Otherwise each block is followed by a seek to its end, which fails at the end of a FLAC that has no length.
    """

    def seekable(self) -> bool:
        """False, so that nothing seeks."""
        return False


def _check_form(file: soundfile.SoundFile, name: str, rates: tuple[int, int]) -> None:
    lowest, highest = rates
    if not lowest <= file.samplerate <= highest or file.channels > MAX_CHANNELS:
        raise InputError(
            f"{name}: expected {lowest} to {highest} Hz and at most {MAX_CHANNELS} channels, "
            f"got {file.samplerate} Hz and {file.channels}"
        )


def check_length(frames: int, rate: int, name: str, max_seconds: float = MAX_RECORDING_SECONDS) -> None:
    """Raises InputError for more than `max_seconds`, or MAX_RECORDING_SAMPLES samples in each channel."""
    if frames > int(max_seconds * rate):
        raise InputError(f"{name}: longer than {max_seconds:g} s, the most of a recording; cut it")
    if frames > MAX_RECORDING_SAMPLES:
        raise InputError(
            f"{name}: more than {MAX_RECORDING_SAMPLES} samples, the most of a recording: at its {rate} Hz that is "
            f"{MAX_RECORDING_SAMPLES / rate:.0f} s; resample it to 48000 Hz or less, or cut it"
        )


def mean_of_channels(samples: Audio) -> Audio:
    """The mean (samples,) of samples (samples, channels); what is not finite there is not finite here."""
    # Opposite infinities, or a sum beyond float32, which is no news: whoever reads recordings refuses them.
    with np.errstate(over="ignore", invalid="ignore"):
        mean: Audio = samples.mean(axis=1, dtype=np.float32)
    return mean


def _samples(file: soundfile.SoundFile, max_seconds: float, name: str) -> Audio:
    """All samples (samples,), channels averaged. Raises InputError if there are, or the header says, too many."""
    known = file.frames < _UNKNOWN_FRAMES
    if known:
        check_length(file.frames, file.samplerate, name, max_seconds)
    # One array, so that no sample is held twice. Its memory is taken when it is written to, so a header that says too
    # much takes none.
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


def _with_data_to_the_end(content: bytes) -> bytes:
    """The file; a WAV that was written to a pipe with zeros as its sizes gets a size that says "to the end"."""
    if content[:4] != _RIFF or content[8:12] != b"WAVE":
        return content
    said = int.from_bytes(content[4:8], "little")
    start = _RIFF_HEADER_BYTES
    while start + 8 <= len(content) and said + 8 != len(content):
        size = int.from_bytes(content[start + 4 : start + 8], "little")
        if content[start : start + 4] == b"data":
            return content if size else content[: start + 4] + b"\xff" * 4 + content[start + 8 :]
        start += 8 + size + size % 2
    return content


def _is_cut_off(content: bytes, noted: str) -> bool:
    """Whether the file has less than its header says. noted: libsndfile's log of it."""
    sizes = ((int(said), int(found)) for _, said, found in _NOTED.findall(noted))
    return any(found < said < _MIN_PLACEHOLDER for said, found in sizes) or (
        content.startswith(_OGG) and not _has_last_page(content)
    )


def _has_last_page(content: bytes) -> bool:
    """Whether the last page of an Ogg file is there as a whole, and says that it is the last one (RFC 3533)."""
    start = content.rfind(_OGG)
    header = content[start : start + _OGG_HEADER_BYTES]
    if len(header) < _OGG_HEADER_BYTES or not header[5] & _OGG_LAST:
        return False
    lengths = content[start + _OGG_HEADER_BYTES : start + _OGG_HEADER_BYTES + header[-1]]
    return len(content) - start >= _OGG_HEADER_BYTES + header[-1] + sum(lengths)
