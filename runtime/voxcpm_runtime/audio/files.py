"""Encoding audio files, and writing them atomically."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import soundfile

from voxcpm_constants.errors import InputError, naming_errors
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.audio.pcm import Audio, clipped_samples, pcm16, require_finite
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
        nearest = next(filter(os.path.lexists, target.parents))
        if not nearest.is_dir():
            raise InputError(
                f"{path}: cannot be written, because {nearest} is not a folder; choose another path"
            )
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise access_error(nearest)
    return path


def write_audio(
    path: str | Path, audio: Audio, sample_rate: int, *, overwrite: bool = False,
    record: Callable[[BinaryIO], None] | None = None,
) -> int:  # fmt: skip
    """Write mono audio (samples,) in the format of the path's extension. Returns the number of clipped samples.

    Lossless formats hold 16-bit samples; a pipe or a device without an extension gets WAV. Missing folders are created,
    and the file is written in blocks, atomically. If the codec does not support `sample_rate`, audio is resampled to
    the next higher rate, or its highest. overwrite: also replace a read-only file. record: called with the complete
    file just before the atomic rename; if it raises, there is no file. Raises InputError, also for NaN or infinite
    samples.
    """
    path = user_path(path)
    format_, rate, clipped = _format(path), sample_rate, 0
    if format_.rates and rate not in format_.rates:
        rate = min((one for one in format_.rates if one > rate), default=format_.rates[-1])
    with _written(path, overwrite) as file:
        sink = _Sink(file)
        try:
            with soundfile.SoundFile(
                sink, "w", rate, channels=1, format=format_.container, subtype=format_.subtype
            ) as encoder:
                for block in _blocks(audio, sample_rate, rate):
                    require_finite(block, str(path))
                    clipped += clipped_samples(block)
                    encoder.write(pcm16(block) if format_.subtype == "PCM_16" else np.clip(block, -1.0, 1.0))
                    sink.check()
        except soundfile.LibsndfileError as error:
            raise InputError(f"{path}: cannot be written ({error.error_string})") from None
        sink.check()
        # Fails here on a full disk, before the record is written.
        file.flush()
        if record is not None:
            record(file)
    return clipped


def write_audio_file(path: str | Path, content: bytes, *, overwrite: bool = False) -> None:
    """Write a file that belongs to audio. Folders, `overwrite` and errors: see `write_audio`."""
    with _written(user_path(path), overwrite) as file:
        file.write(content)


def _blocks(audio: Audio, sample_rate: int, rate: int) -> Iterator[Audio]:
    """The audio in parts, resampled if the rates differ, so that hours of it take little memory."""
    parts = (audio[at : at + _BLOCK] for at in range(0, len(audio), _BLOCK))
    if rate == sample_rate:
        yield from parts
        return
    import soxr  # needed only if the rates differ

    resampler, left = soxr.ResampleStream(sample_rate, rate, 1, dtype="float32"), len(audio)
    for part in parts:
        left -= len(part)
        yield resampler.resample_chunk(part, last=not left)


@contextlib.contextmanager
def _written(path: Path, overwrite: bool) -> Iterator[BinaryIO]:
    with naming_errors(f"{path}: cannot be written"):
        if (target := replaced_file(path, overwrite=overwrite)) is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path, overwrite=overwrite) as file:
            yield file


class _Sink:
    """The file that libsndfile writes to, through callbacks that cannot raise: the first error is kept for `check`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._error: OSError | None = None

    def write(self, data: bytes) -> int:
        self._keep_error(self._file.write, data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> None:
        self._keep_error(self._file.seek, offset, whence)

    def tell(self) -> int:
        return self._keep_error(self._file.tell)

    def check(self) -> None:
        """Raises the OSError of an earlier call."""
        if self._error is not None:
            raise self._error

    def _keep_error(self, call: Callable[..., int], *given: object) -> int:
        try:
            return call(*given)
        except OSError as error:
            self._error = self._error or error
            return 0


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
