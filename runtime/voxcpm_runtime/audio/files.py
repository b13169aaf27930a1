"""Encoding audio files, and writing them atomically."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile

from voxcpm_constants.errors import InputError, naming_errors
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.audio.pcm import Audio, clipped_samples, pcm16, require_finite
from voxcpm_runtime.audio.reading import resample
from voxcpm_runtime.storage.atomic_file import access_error, atomic_file, refuse_inputs, replaced_file


class _Format(NamedTuple):
    """libsndfile's names of a format, and the sample rates in Hz that its codec supports (empty: any)."""

    container: str
    subtype: str
    rates: tuple[int, ...] = ()


_BLOCK = 1 << 16  # Samples; libsndfile crashes on millions of samples of Vorbis at once
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


def check_output_path(
    path: str | Path, *, inputs: Iterable[str | Path | None] = (), overwrite: bool = False,
    endings: Iterable[str] | None = None,
) -> Path:  # fmt: skip
    """The path with ~ expanded. Raises InputError if no audio file, or file of these `endings`, can be written there.

    inputs: files that the output must not replace. overwrite: whether a read-only file may be replaced.
    """
    path = user_path(path)
    with naming_errors(f"{path}: cannot be written"):
        target = replaced_file(path, overwrite=overwrite)
        if endings is None:
            _format(path)
        elif path.suffix.lower() not in endings:
            raise InputError(f"{path}: expected a name that ends in {', '.join(endings)}")
        refuse_inputs(path, inputs)
        if target is None:
            return path
        nearest = next(folder for folder in target.parents if os.path.lexists(folder))
        if not nearest.is_dir():
            raise InputError(
                f"{path}: cannot be written, because {nearest} is not a folder; choose another path"
            )
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise access_error(nearest)
    return path


def write_audio(path: str | Path, audio: Audio, sample_rate: int, *, overwrite: bool = False) -> int:
    """Write mono audio (samples,) in the format of the path's extension. Returns the number of clipped samples.

    Lossless formats hold 16-bit samples; a pipe or a device without an extension gets WAV. Missing folders are created,
    and the file is written atomically. If the codec does not support `sample_rate`, audio is resampled to the next
    higher rate, or its highest. overwrite: also replace a read-only file. Raises InputError, also for NaN or infinite
    samples.
    """
    content, clipped = audio_file(path, audio, sample_rate)
    write_audio_file(path, content, overwrite=overwrite)
    return clipped


def audio_file(path: str | Path, audio: Audio, sample_rate: int) -> tuple[bytes, int]:
    """The content of the file that `write_audio` would write to the path, and the number of clipped samples."""
    path = user_path(path)
    format_ = _format(path)
    for block in _blocks(audio):
        require_finite(block, str(path))
    if format_.rates and sample_rate not in format_.rates:
        nearest = min((rate for rate in format_.rates if rate > sample_rate), default=format_.rates[-1])
        audio, sample_rate = resample(audio, sample_rate, nearest), nearest
    # Encoded in memory, because libsndfile does not report a full disk.
    encoded = io.BytesIO()
    try:
        with soundfile.SoundFile(
            encoded, "w", sample_rate, channels=1, format=format_.container, subtype=format_.subtype
        ) as file:
            for block in _blocks(audio):
                file.write(pcm16(block) if format_.subtype == "PCM_16" else np.clip(block, -1.0, 1.0))
    except (soundfile.LibsndfileError, OSError) as error:
        reason = getattr(error, "error_string", "") or getattr(error, "strerror", "") or error
        raise InputError(f"{path}: cannot be written ({reason})") from None
    return encoded.getvalue(), sum(map(clipped_samples, _blocks(audio)))


def _blocks(audio: Audio) -> Iterator[Audio]:
    """The audio in parts, so that what is computed for hours of it takes little memory."""
    for at in range(0, len(audio), _BLOCK):
        yield audio[at : at + _BLOCK]


def write_audio_file(
    path: str | Path, content: bytes, *, overwrite: bool = False, record: Callable[[], None] | None = None
) -> None:
    """Write the content from `audio_file`. Folders, `overwrite` and errors: see `write_audio`.

    record: called after all is written, just before the atomic rename; if it raises, there is no file.
    """
    path = user_path(path)
    with naming_errors(f"{path}: cannot be written"):
        if (target := replaced_file(path, overwrite=overwrite)) is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path, overwrite=overwrite) as file:
            file.write(content)
            # Fails here on a full disk, before the record is written.
            file.flush()
            if record is not None:
                record()


def _format(path: Path) -> _Format:
    format_ = FORMATS.get(path.suffix.lower())
    with contextlib.suppress(OSError):
        format_ = format_ or (FORMATS[".wav"] if replaced_file(path) is None else None)
    if format_ is None:
        raise InputError(
            f"{path}: expected a name that ends in {', '.join(FORMATS)}, got {path.suffix or 'no ending'!r}"
        )
    if not soundfile.check_format(format_.container, format_.subtype):
        raise InputError(f"{path}: the installed libsndfile cannot write {path.suffix}; use .wav")
    return format_
