"""Recordings: decoded in bounded memory, averaged to mono, resampled and trimmed.

libsndfile decodes the files, except for those of phones (`phone_formats`);
a truncated one gives the samples that it has, as in upstream's `librosa.load`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import soundfile

from voxcpm_constants.bounds import (
    MAX_CHANNELS,
    MAX_RATE,
    MAX_RECORDING_BYTES,
    MAX_RECORDING_SAMPLES,
    MAX_RECORDING_SECONDS,
)
from voxcpm_constants.errors import InputError, warn
from voxcpm_constants.json_files import read_bounded
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.argument_types import wrong_type
from voxcpm_runtime.audio.pcm import Audio, require_finite
from voxcpm_runtime.audio.phone_formats import decode_with_system, is_phone_format, opened_with_av

AudioSource = str | Path | bytes | bytearray | memoryview | BinaryIO | tuple[npt.NDArray[np.generic], int]
"""A path, a file's bytes, an open binary file, or (samples, sample rate in Hz).

A path or an open file may be a pipe; an open file is read from its current position. Samples are (samples,) or
(samples, channels), floating point in [-1, 1], int16, int32 or, as in 8-bit WAV files, uint8.
"""
_BLOCK_FRAMES = 1 << 16
# dtype -> (value of silence, difference from it at full scale).
_PCM_SCALES = {"uint8": (2**7, 2**7), "int16": (0, 2**15), "int32": (0, 2**31)}
# Linear; 40 dB above full scale must be a scaling error.
_MAX_PEAK = 100.0
_FRAME, _HOP = 2048, 512
"""Samples of a frame whose level is computed, and from one frame to the next, at any sample rate."""
_RANGE_DB = 35.0  # Frames this many decibels below the loudest one are silence
_MARGIN_MS = 200
_MIN_LEVEL = np.float32(1e-5)  # librosa's floor: below it all frames are equally loud
# Of the average's level to the channels'. Independent channels have a ratio of 0.71, a sound in one of eight has 0.35;
# swapped wires have almost none.
_CANCELLED = 0.25


class Decoded(tuple[Audio, int]):
    """Samples (samples,) in [-1, 1] and their rate in Hz. fault: what is wrong with the recording, if anything."""

    fault = ""


def read_audio(
    source: AudioSource, sample_rate: int, *, min_samples: int = 1, what: str = "audio", faults: list[str] | None = None
) -> Audio:  # fmt: skip
    """Read audio as mono float32 (samples,) at `sample_rate` Hz: channels averaged, then resampled.

    min_samples: minimum length at `sample_rate`. what: its name in messages, such as "prompt audio". faults: gets what
    otherwise is a warning, that its channels cancel each other. Raises InputError for a source that is not audio, is
    empty, too short or too long, not finite, or far beyond full scale.
    """
    name = f"{what} {source}" if isinstance(source, str | Path) else what
    if isinstance(source, tuple):
        decoded = _from_array(source, name)
    else:
        decoded = decode_audio(audio_content(source, name), name)
    mono, rate = decoded
    if decoded.fault:
        (warn if faults is None else faults.append)(f"{name}: {decoded.fault}")
    if not len(mono):
        raise InputError(f"{name}: expected samples, but it is empty")
    require_finite(mono, name)
    if (peak := float(np.abs(mono).max())) > _MAX_PEAK:
        raise InputError(
            f"{name}: expected floating point samples in [-1, 1], got a peak of {peak:g}; scale them"
        )
    resampled = resample(mono, rate, sample_rate, name)
    if len(resampled) < min_samples:
        raise InputError(
            f"{name}: {len(mono) / rate:.3f} s long, but the minimum is one patch, {min_samples / sample_rate:.3f} s"
        )
    return resampled


def decode_audio(
    content: bytes,
    name: str,
    *,
    max_seconds: float = MAX_RECORDING_SECONDS,
    rates: tuple[int, int] = (1, MAX_RATE),
) -> Decoded:
    """The samples (samples,) of an audio file in [-1, 1], channels averaged, and their rate in Hz.

    name: its name in messages. rates: lowest and highest sample rate in Hz. Raises InputError for content that is not
    audio, and, while decoding, for more than `max_seconds` or MAX_RECORDING_SAMPLES.
    """
    min_rate, max_rate = rates
    if not content:
        raise InputError(f"{name}: expected an audio file, but it is empty or already read to its end")
    if is_phone_format(content):
        if (wav := decode_with_system(content)) is None:
            with opened_with_av(content, name) as (rate, blocks):
                if min_rate <= rate <= max_rate:
                    return _downmixed(blocks, rate, name, max_seconds)
            raise InputError(f"{name}: expected {min_rate} to {max_rate} Hz, got {rate} Hz")
        content = wav
    try:
        with _SequentialFile(_Content(content)) as file:
            rate, channels = file.samplerate, file.channels
            if min_rate <= rate <= max_rate and channels <= MAX_CHANNELS:
                return _downmixed(file.each_block(), rate, name, max_seconds)
    except InputError:
        raise
    except (soundfile.LibsndfileError, ValueError, RuntimeError) as error:
        reason = getattr(error, "error_string", "its header is inconsistent")
        raise InputError(f"{name}: expected an audio file, but it cannot be read ({reason})") from None
    raise InputError(
        f"{name}: expected {min_rate} to {max_rate} Hz and at most {MAX_CHANNELS} channels, "
        f"got {rate} Hz and {channels}"
    )


class _Content(io.BytesIO):
    """The bytes of a file. Ignores the negative offsets of damaged headers, for which soundfile prints a traceback."""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        try:
            return super().seek(offset, whence)
        except ValueError:
            return self.tell()


class _SequentialFile(soundfile.SoundFile):
    """Keeps soundfile from seeking after each block, which fails at the end of a FLAC without a length."""

    def seekable(self) -> bool:
        return False

    def each_block(self) -> Iterator[Audio]:
        while len(block := self.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
            yield block


def _downmixed(
    blocks: Iterable[Audio], rate: int, name: str, max_seconds: float = MAX_RECORDING_SECONDS
) -> Decoded:
    """The average of the channels of blocks (frames, channels); if they cancel each other, the first alone."""
    means: list[Audio] = [np.empty(0, np.float32)]
    firsts: list[Audio] = []
    energies = np.zeros(2)  # of the average, and of the channels on average
    frames = 0
    for block in blocks:
        frames += len(block)
        _check_length(frames, rate, name, max_seconds)
        with np.errstate(over="ignore", invalid="ignore"):  # `require_finite` reports NaN and infinity
            mean: Audio = block.mean(axis=1, dtype=np.float32)
            means.append(mean)
            if block.shape[1] > 1:
                firsts.append(block[:, 0].copy())
                energies += np.vdot(mean, mean), np.vdot(block, block) / block.shape[1]
    mixed, channels = np.sqrt(energies)
    if not mixed < _CANCELLED * channels:
        return Decoded((np.concatenate(means), rate))
    decoded = Decoded((np.concatenate(firsts), rate))
    decoded.fault = (
        "its channels cancel each other, so only the first one is used; invert one of them to use both"
    )
    return decoded


def _check_length(frames: int, rate: int, name: str, max_seconds: float = MAX_RECORDING_SECONDS) -> None:
    maximum = min(int(max_seconds * rate), MAX_RECORDING_SAMPLES)
    if frames > maximum:
        raise InputError(
            f"{name}: longer than {maximum / rate:g} s, the maximum for a recording at {rate} Hz; "
            "shorten it, or resample it to 48000 Hz"
        )


def _from_array(source: tuple[npt.NDArray[np.generic], int], name: str) -> Decoded:
    if len(source) != 2:
        raise InputError(f"{name}: expected (samples, sample rate), got a tuple of {len(source)}")
    samples, rate = np.asarray(source[0]), _checked_rate(source[1], name)
    shape = f"{name}: expected samples of shape (samples,) or (samples, channels), got {samples.shape}"
    if samples.ndim not in (1, 2):
        raise InputError(shape)
    if samples.ndim == 2 and samples.shape[1] > samples.shape[0] > 0:
        raise InputError(f"{shape}; transpose them")
    if samples.ndim == 2 and samples.shape[1] > MAX_CHANNELS:
        raise InputError(f"{name}: expected at most {MAX_CHANNELS} channels, got {samples.shape[1]}")
    if not np.issubdtype(samples.dtype, np.floating) and samples.dtype.name not in _PCM_SCALES:
        raise InputError(
            f"{name}: expected floating point, int16, int32 or uint8 samples, got {samples.dtype}"
        )
    _check_length(len(samples), rate, name)
    zero, one = _PCM_SCALES.get(samples.dtype.name, (0, 1))
    # A value too large for float32 becomes infinite, and is rejected by `require_finite`.
    with np.errstate(over="ignore"):
        values = (np.asarray(samples, np.float32) - np.float32(zero)) / np.float32(one)
    if values.ndim == 1:
        decoded = Decoded((values, rate))
        decoded.fault = getattr(source, "fault", "")
        return decoded
    return _downmixed([values], rate, name)


def audio_content(source: object, name: str) -> bytes:
    """The bytes of a source, read whole, because pipes cannot seek. Raises InputError if it cannot be read."""
    try:
        if isinstance(source, str | Path):
            content = read_bounded(user_path(source), MAX_RECORDING_BYTES)
        elif isinstance(source, bytes | bytearray | memoryview):
            content = bytes(source)
        elif hasattr(source, "read"):
            content = source.read(MAX_RECORDING_BYTES + 1)
        else:
            raise wrong_type(source, name, "a path, bytes, an open binary file or (samples, sample rate)")
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{name}: no such file") from None
    # ValueError: a closed file.
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not isinstance(content, bytes):
        raise InputError(f'{name}: expected a file opened for bytes; open it with mode "rb"')
    if len(content) > MAX_RECORDING_BYTES:
        raise InputError(f"{name}: expected at most {MAX_RECORDING_BYTES} bytes, the maximum for a recording")
    return content


def resample(samples: Audio, rate: object, target_rate: int, name: str = "audio") -> Audio:
    """The samples (samples,) resampled from `rate` to `target_rate` Hz by soxr, as in upstream's librosa.load.

    name: of the audio in messages. Raises InputError for a rate that is not a whole number in range.
    """
    source_rate = _checked_rate(rate, name)
    if source_rate == target_rate:
        return samples
    import soxr  # needed only if the rates differ

    return np.asarray(soxr.resample(samples, source_rate, target_rate), np.float32)


def _checked_rate(rate: object, name: str) -> int:
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or not 1 <= rate <= MAX_RATE:
        raise InputError(
            f"{name}: the sample rate must be a whole number of Hz from 1 to {MAX_RATE}, got {rate!r}"
        )
    return int(rate)


def trim_silence(audio: Audio, sample_rate: int) -> Audio:
    """A view of audio (samples,) from 200 ms before its first sound to 200 ms after its last; all of it if it is zero.

    Same as upstream's `_trim_audio_silence_vad` (model/voxcpm2.py) with librosa 0.11.
    """
    if not audio.any():
        return audio
    levels = np.maximum(_levels(np.pad(audio, _FRAME // 2)), _MIN_LEVEL)
    loud = np.flatnonzero(20.0 * np.log10(levels / levels.max()) > -_RANGE_DB)
    start, end = int(loud[0]) * _HOP, int(loud[-1] + 1) * _HOP
    if len(audio) >= _FRAME:
        # Trailing noise passes that test, but is not within the same range of the highest peak.
        voiced = np.flatnonzero(_levels(audio) >= np.abs(audio).max() * 10.0 ** (-_RANGE_DB / 20.0))
        end = min(end, int(voiced[-1]) * _HOP + _FRAME) if len(voiced) else end
    margin = _MARGIN_MS * sample_rate // 1000
    return audio[max(0, start - margin) : end + margin]


def _levels(audio: Audio) -> npt.NDArray[np.float32]:
    """Root mean square (frames,) of every whole frame."""
    frames = np.lib.stride_tricks.sliding_window_view(audio, _FRAME)[::_HOP]
    return np.sqrt(np.mean(np.square(frames), axis=1))
