"""16-bit samples, and the levels of audio."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxcpm_constants.errors import InputError
from voxcpm_runtime.argument_types import wrong_type

Audio = npt.NDArray[np.float32]
"""Mono audio (samples,) in [-1, 1]."""
Pcm = npt.NDArray[np.int16]
"""16-bit mono samples (samples,)."""

SILENCE_DBFS = -50.0
"""A frame whose RMS is below this level counts as silence."""
FRAME_SECONDS = 0.02
_PEAK = 32767


@dataclass(frozen=True)
class Levels:
    """Peak, RMS, silence and clipping of audio. dBFS is relative to a constant 1: a full-scale sine has RMS -3.01."""

    peak: float
    """Largest absolute sample; above 1 if there are samples outside [-1, 1]."""
    rms: float
    """Root mean square of all samples."""
    silence_ratio: float
    """Share of 20 ms frames, a shorter last one included, whose RMS is below SILENCE_DBFS; 1 without samples."""
    clipped: int
    """Number of samples outside [-1, 1]."""

    @property
    def peak_dbfs(self) -> float:
        """`peak` in dBFS; -inf for zero."""
        return _dbfs(self.peak)

    @property
    def rms_dbfs(self) -> float:
        """`rms` in dBFS; -inf for zero."""
        return _dbfs(self.rms)


def pcm16(audio: Audio) -> Pcm:
    """16-bit samples (samples,): audio clipped to [-1, 1], times 32767, rounded to the nearest integer.

    Raises InputError for samples that are NaN or infinite, and for what are no samples.
    """
    samples = np.asarray(audio)
    if samples.dtype.kind not in "fiu":
        raise wrong_type(audio, "audio", "an array of numbers")
    require_finite(samples, "audio")
    return np.round(np.clip(samples, -1.0, 1.0) * _PEAK).astype(np.int16)


def clipped_samples(audio: Audio) -> int:
    """How many samples are outside [-1, 1]."""
    return int(np.count_nonzero(np.abs(audio) > 1.0))


def require_finite(audio: Audio, name: str) -> None:
    """Raises InputError for samples that are NaN or infinite; codecs abort the process at them."""
    if not np.isfinite(audio).all():
        raise InputError(f"{name}: expected finite samples, but some are NaN or infinite")


def levels(audio: Audio, sample_rate: int) -> Levels:
    """The levels of finite audio (samples,) at `sample_rate` Hz, computed in float64."""
    if not len(audio):
        return Levels(peak=0.0, rms=0.0, silence_ratio=1.0, clipped=0)
    power = np.square(audio, dtype=np.float64)
    starts = np.arange(0, len(audio), max(1, round(FRAME_SECONDS * sample_rate)))
    frame_power = np.add.reduceat(power, starts) / np.diff(starts, append=len(audio))
    return Levels(
        peak=float(np.abs(audio).max()),
        rms=math.sqrt(power.mean()),
        silence_ratio=float(np.mean(frame_power < 10.0 ** (SILENCE_DBFS / 10.0))),
        clipped=clipped_samples(audio),
    )


def _dbfs(level: float) -> float:
    return 20.0 * math.log10(level) if level > 0 else -math.inf
