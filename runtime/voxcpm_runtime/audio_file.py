"""Prompt audio in, speech out: read as mono at the wanted rate, written whole or not at all."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from voxcpm_constants.errors import InputError
from voxcpm_runtime.whole_file import whole_file

Audio = npt.NDArray[np.float32]
AudioSource = str | Path | bytes | BinaryIO | tuple[npt.NDArray[np.generic], int]
"""A path, a file's bytes, an open binary file, or (samples, sample rate in Hz).

Samples are (samples,) or (samples, channels), floating point in [-1, 1], int16 or int32.
"""


class _Format(NamedTuple):
    """libsndfile's names, and the rates in Hz that the codec takes (none: any)."""

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
_PCM_SCALE = {"int16": 2.0**15, "int32": 2.0**31}
_PCM16_PEAK = 32767


def read_audio(
    source: AudioSource, sample_rate: int, *, least_samples: int = 1, what: str = "audio"
) -> Audio:
    """Mono float32 (samples,) at `sample_rate` Hz: channels averaged, then a polyphase resampling filter.

    least_samples: at `sample_rate`. what: the word for it in messages, such as "prompt audio".

    Raises InputError for what is no audio, is empty, has NaN or infinite samples, or is too short.
    """
    name = _name(source, what)
    samples, rate = source if isinstance(source, tuple) else _decoded(source, name)
    mono = _mono(np.asarray(samples), name)
    if not np.isfinite(mono).all():
        raise InputError(f"{name}: expected finite samples, but some are NaN or infinite")
    resampled = resample(mono, rate, sample_rate, name)
    if len(resampled) < least_samples:
        raise InputError(
            f"{name}: {len(mono) / rate:.3f} s long, but one patch, {least_samples / sample_rate:.3f} s, is the least"
        )
    return resampled


def resample(samples: Audio, rate: object, wanted: int, name: str = "audio") -> Audio:
    """From `rate` to `wanted` Hz (scipy's polyphase filter, Kaiser window)."""
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or rate < 1:
        raise InputError(f"{name}: the sample rate must be a whole number of Hz above 0, got {rate!r}")
    if rate == wanted:
        return samples
    from scipy.signal import resample_poly

    divisor = math.gcd(int(rate), wanted)
    return np.asarray(resample_poly(samples, wanted // divisor, int(rate) // divisor), np.float32)


def check_output_path(path: str | Path) -> Path:
    """The path, if a file can be written there, tried in the folder itself. Raises InputError."""
    path = Path(path).expanduser()
    _format(path)
    if path.is_dir():
        raise InputError(f"{path}: expected the path of an audio file to write, but it is a folder")
    if not path.parent.is_dir():
        raise InputError(f"{path}: cannot be written, the folder {path.parent} does not exist")
    try:
        with whole_file(path, keep=False) as file:
            file.write(b"")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError("it exists and is read-only")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    return path


def write_audio(path: str | Path, audio: Audio, sample_rate: int) -> None:
    """Write mono audio (samples,) in [-1, 1], beyond which it is clipped, in the format of the path's extension.

    WAV and the other lossless formats hold 16-bit samples. The file appears when it is complete. A codec that does
    not take `sample_rate` gets the next higher rate it takes. Raises InputError when it cannot be written.
    """
    import soundfile

    path = Path(path).expanduser()
    form = _format(path)
    if form.rates and sample_rate not in form.rates:
        wanted = min((rate for rate in form.rates if rate > sample_rate), default=form.rates[-1])
        audio, sample_rate = resample(audio, sample_rate, wanted), wanted
    clipped = np.clip(audio, -1.0, 1.0)
    if form.subtype == "PCM_16":
        clipped = np.round(clipped * _PCM16_PEAK).astype(np.int16)
    try:
        with whole_file(path) as file:
            soundfile.write(file, clipped, sample_rate, format=form.container, subtype=form.subtype)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    except soundfile.LibsndfileError as error:
        raise InputError(f"{path}: cannot be written ({error.error_string})") from None


def _format(path: Path) -> _Format:
    import soundfile

    form = FORMATS.get(path.suffix.lower())
    if form is None:
        raise InputError(
            f"{path}: expected a name that ends in {', '.join(FORMATS)}, got {path.suffix or 'no ending'!r}"
        )
    if not soundfile.check_format(form.container, form.subtype):
        raise InputError(f"{path}: the installed libsndfile does not write {path.suffix}; write .wav")
    return form


def _name(source: AudioSource, what: str) -> str:
    return f"{what} {source}" if isinstance(source, str | Path) else what


def _decoded(source: str | Path | bytes | BinaryIO, name: str) -> tuple[Audio, int]:
    import soundfile

    if isinstance(source, str | Path):
        source = Path(source).expanduser()
        if not source.is_file():
            raise InputError(f"{name}: no such file")
    try:
        return soundfile.read(io.BytesIO(source) if isinstance(source, bytes) else source, dtype="float32")
    except (soundfile.LibsndfileError, OSError, TypeError) as error:
        reason = getattr(error, "error_string", None) or error
        raise InputError(f"{name}: expected an audio file, but it cannot be read ({reason})") from None


def _mono(samples: npt.NDArray[np.generic], name: str) -> Audio:
    if samples.ndim not in (1, 2):
        raise InputError(
            f"{name}: expected samples of shape (samples,) or (samples, channels), got {samples.shape}"
        )
    if samples.size == 0:
        raise InputError(f"{name}: expected samples, but it is empty")
    scale = _PCM_SCALE.get(samples.dtype.name, 1.0 if np.issubdtype(samples.dtype, np.floating) else None)
    if scale is None:
        raise InputError(f"{name}: expected floating point, int16 or int32 samples, got {samples.dtype}")
    values = np.asarray(samples, np.float32) / np.float32(scale)
    return values if values.ndim == 1 else values.mean(axis=1, dtype=np.float32)
