"""Audio files: prompts are read as mono at a given rate; speech is written as a whole or not at all."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import soundfile

from voxcpm_constants.bounded_files import read_bounded
from voxcpm_constants.bounds import MAX_CHANNELS, MAX_RATE, MAX_RECORDING_BYTES
from voxcpm_constants.errors import InputError, os_reason
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.audio.decoding import check_length, decode_audio, mean_of_channels
from voxcpm_runtime.audio.pcm import Audio, clipped_samples, pcm16, require_finite
from voxcpm_runtime.storage.whole_file import refuse_inputs, replaced_file, whole_file

AudioSource = str | Path | bytes | bytearray | memoryview | BinaryIO | tuple[npt.NDArray[np.generic], int]
"""A path, a file's bytes, an open binary file, or (samples, sample rate in Hz).

A path or an open file may be a pipe; an open file is read from its current position. Samples are (samples,) or
(samples, channels), floating point in [-1, 1], int16, int32 or, as in 8-bit WAV files, uint8.
"""


class _Format(NamedTuple):
    """libsndfile's names of a format, and the sample rates in Hz of its codec (empty: any)."""

    container: str
    subtype: str
    rates: tuple[int, ...] = ()


FORMATS = {
    ".wav": _Format("WAV", "PCM_16"),
    ".flac": _Format("FLAC", "PCM_16"),
    ".aiff": _Format("AIFF", "PCM_16"),
    ".aif": _Format("AIFF", "PCM_16"),
    ".au": _Format("AU", "PCM_16"),
    ".caf": _Format("CAF", "PCM_16"),
    ".ogg": _Format("OGG", "VORBIS"),
    ".opus": _Format("OGG", "OPUS", (8000, 12000, 16000, 24000, 48000)),
    ".mp3": _Format("MP3", "MPEG_LAYER_III", (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)),
}
# dtype -> (value of silence, difference from it at full scale).
_PCM_SCALES = {"uint8": (2**7, 2**7), "int16": (0, 2**15), "int32": (0, 2**31)}
# Linear: a peak 40 dB above full scale is a scaling error.
_MAX_PEAK = 100.0
_BLOCK_FRAMES = 1 << 16


def read_audio(source: AudioSource, sample_rate: int, *, min_samples: int = 1, what: str = "audio") -> Audio:
    """Read audio as mono float32 (samples,) at `sample_rate` Hz: channels averaged, then resampled.

    min_samples: smallest allowed length at `sample_rate`. what: its name in messages, such as "prompt audio".

    Raises InputError for a source that is not audio, is empty, has NaN or infinite samples, is far beyond full scale,
    is too short, or is longer than MAX_RECORDING_SECONDS or MAX_RECORDING_SAMPLES.
    """
    name = f"{what} {source}" if isinstance(source, str | Path) else what
    if isinstance(source, tuple):
        mono, rate = _from_array(source, name)
    else:
        mono, rate = decode_audio(audio_content(source, name), name)
    if not len(mono):
        raise InputError(f"{name}: expected samples, but it is empty")
    require_finite(mono, name)
    # Without an array of all absolute values.
    peak = float(max(mono.max(), -mono.min()))
    if peak > _MAX_PEAK:
        raise InputError(
            f"{name}: expected floating point samples in [-1, 1], got a peak of {peak:g}; scale them"
        )
    resampled = resample(mono, rate, sample_rate, name)
    if len(resampled) < min_samples:
        raise InputError(
            f"{name}: {len(mono) / rate:.3f} s long, but the minimum is one patch, {min_samples / sample_rate:.3f} s"
        )
    return resampled


def resample(samples: Audio, rate: object, wanted: int, name: str = "audio") -> Audio:
    """The samples (samples,) resampled from `rate` to `wanted` Hz by soxr, as upstream's librosa.load does.

    name: the name of the audio in the message. Raises InputError for a rate that is not a whole number in range.
    """
    given = _checked_rate(rate, name)
    if given == wanted:
        return samples
    import soxr  # needed only if the rates differ

    return np.asarray(soxr.resample(samples, given, wanted), np.float32)


def _checked_rate(rate: object, name: str) -> int:
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or not 1 <= rate <= MAX_RATE:
        raise InputError(
            f"{name}: the sample rate must be a whole number of Hz from 1 to {MAX_RATE}, got {rate!r}"
        )
    return int(rate)


def _from_array(source: tuple[npt.NDArray[np.generic], int], name: str) -> tuple[Audio, int]:
    """Mono samples (samples,) in [-1, 1] of (samples, sample rate): channels averaged, and their rate.

    Computed in blocks, so that no channel is copied as a whole.
    """
    if len(source) != 2:
        raise InputError(f"{name}: expected (samples, sample rate), got a tuple of {len(source)}")
    samples = np.asarray(source[0])
    if samples.ndim not in (1, 2):
        raise InputError(
            f"{name}: expected samples of shape (samples,) or (samples, channels), got {samples.shape}"
        )
    if samples.ndim == 2 and samples.shape[1] > samples.shape[0] > 0:
        raise InputError(
            f"{name}: expected samples of shape (samples, channels), got {samples.shape}; transpose them"
        )
    if samples.ndim == 2 and samples.shape[1] > MAX_CHANNELS:
        raise InputError(f"{name}: expected at most {MAX_CHANNELS} channels, got {samples.shape[1]}")
    if not np.issubdtype(samples.dtype, np.floating) and samples.dtype.name not in _PCM_SCALES:
        raise InputError(
            f"{name}: expected floating point, int16, int32 or uint8 samples, got {samples.dtype}"
        )
    rate = _checked_rate(source[1], name)
    check_length(len(samples), rate, name)
    zero, one = _PCM_SCALES.get(samples.dtype.name, (0, 1))
    mono = np.empty(len(samples), np.float32)
    for start in range(0, len(samples), _BLOCK_FRAMES):
        block = samples[start : start + _BLOCK_FRAMES]
        # A value too large for float32 becomes infinite, and is rejected by `require_finite`.
        with np.errstate(over="ignore"):
            values = (np.asarray(block, np.float32) - np.float32(zero)) / np.float32(one)
        mono[start : start + len(block)] = values if values.ndim == 1 else mean_of_channels(values)
    return mono, rate


def audio_content(source: object, name: str) -> bytes:
    """The bytes of a source: read as a whole, because pipes cannot seek, and the format must not depend on the name.

    Raises InputError for a source that cannot be read, is neither file nor pipe, or exceeds MAX_RECORDING_BYTES.
    """
    if not isinstance(source, bytes | bytearray | memoryview | str | Path) and not hasattr(source, "read"):
        kind = type(source).__name__
        raise InputError(
            f"{name}: expected a path, bytes, an open binary file or (samples, sample rate), got {kind}"
        )
    path = user_path(source) if isinstance(source, str | Path) else None
    try:
        if path is not None:
            content = read_bounded(path, MAX_RECORDING_BYTES)
        elif isinstance(source, bytes | bytearray | memoryview):
            content = bytes(source)
        else:
            content = source.read(MAX_RECORDING_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{name}: no such file") from None
    # ValueError: a file that was closed.
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not isinstance(content, bytes):
        raise InputError(f'{name}: expected a file opened for bytes; open it with mode "rb"')
    if len(content) > MAX_RECORDING_BYTES:
        raise InputError(f"{name}: expected at most {MAX_RECORDING_BYTES} bytes, the maximum of a recording")
    return content


def check_output_path(
    path: str | Path, *, inputs: Iterable[str | Path | None] = (), overwrite: bool = False
) -> Path:
    """The path with ~ expanded. Raises InputError if no audio file can be written there, which is tried.

    Missing folders are created for the test, which finds names that are too long, and removed again. inputs: files that
    are read for the speech; the output must be none of them. overwrite: whether a read-only file may be replaced.
    """
    path = user_path(path)
    made: list[Path] = []
    try:
        target = replaced_file(path, overwrite=overwrite)
        _format(path)
        refuse_inputs(path, inputs)
        if target is None:
            return path
        above = target.parents
        nearest = next(i for i, folder in enumerate(above) if os.path.lexists(folder))
        if not above[nearest].is_dir():
            raise InputError(
                f"{path}: cannot be written, because {above[nearest]} is not a folder; choose another path"
            )
        for folder in reversed(above[:nearest]):
            folder.mkdir()
            made.append(folder)
        with contextlib.suppress(FileNotFoundError):
            # Fails for a name that is too long, which the temp file's shortened name hides.
            target.lstat()
        with whole_file(path, keep=False, overwrite=overwrite) as file:
            file.write(b"")
    # ValueError: a null character in the name.
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = os_reason(error) if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: cannot be written ({reason})") from None
    finally:
        # Another process may have written there in the meantime.
        with contextlib.suppress(OSError):
            for folder in reversed(made):
                folder.rmdir()
    return path


def write_audio(
    path: str | Path,
    audio: Audio,
    sample_rate: int,
    *,
    inputs: Iterable[str | Path | None] = (),
    overwrite: bool = False,
) -> int:
    """Write mono audio (samples,) in the format of the path's extension; samples outside [-1, 1] are clipped.

    WAV and the other lossless formats hold 16-bit samples; a pipe or a device without an extension gets WAV. Folders
    that are missing are made. The file appears when it is complete. For a codec that does not take `sample_rate`, audio
    is resampled to the next higher rate. inputs, overwrite: see `check_output_path`. Returns the number of clipped
    samples. Raises InputError if the file cannot be written, and for NaN or infinite samples.
    """
    refuse_inputs(user_path(path), inputs)
    content, clipped = audio_file(path, audio, sample_rate)
    write_audio_file(path, content, overwrite=overwrite)
    return clipped


def audio_file(path: str | Path, audio: Audio, sample_rate: int) -> tuple[bytes, int]:
    """The content of the file that `write_audio` would write, and the number of clipped samples.

    path: its name; nothing is written there. Raises InputError for NaN or infinite samples.
    """
    path = user_path(path)
    form = _format(path)
    require_finite(audio, str(path))
    if form.rates and sample_rate not in form.rates:
        wanted = min((rate for rate in form.rates if rate > sample_rate), default=form.rates[-1])
        audio, sample_rate = resample(audio, sample_rate, wanted), wanted
    samples = pcm16(audio) if form.subtype == "PCM_16" else np.clip(audio, -1.0, 1.0)
    # Encoded in memory, because libsndfile does not report a full disk.
    encoded = io.BytesIO()
    try:
        soundfile.write(encoded, samples, sample_rate, format=form.container, subtype=form.subtype)
    except soundfile.LibsndfileError as error:
        raise InputError(f"{path}: cannot be written ({error.error_string})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({os_reason(error)})") from None
    return encoded.getvalue(), clipped_samples(audio)


def write_audio_file(
    path: str | Path, content: bytes, *, overwrite: bool = False, record: Callable[[], None] | None = None
) -> None:
    """Write what `audio_file` returned. Folders, `overwrite` and errors: see `write_audio`.

    record: called when all is written, just before the file appears; if it raises, there is no file.
    """
    path = user_path(path)
    try:
        if (target := replaced_file(path, overwrite=overwrite)) is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, overwrite=overwrite) as file:
            file.write(content)
            # Reports a full disk before the record is written.
            file.flush()
            if record is not None:
                record()
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({os_reason(error)})") from None


def _format(path: Path) -> _Format:
    form = FORMATS.get(path.suffix.lower())
    if form is None:
        with contextlib.suppress(OSError):
            form = FORMATS[".wav"] if replaced_file(path) is None else None
    if form is None:
        raise InputError(
            f"{path}: expected a name that ends in {', '.join(FORMATS)}, got {path.suffix or 'no ending'!r}"
        )
    if not soundfile.check_format(form.container, form.subtype):
        raise InputError(f"{path}: the installed libsndfile does not write {path.suffix}; write .wav")
    return form
