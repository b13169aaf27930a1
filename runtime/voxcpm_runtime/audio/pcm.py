"""16-bit samples, and fades that avoid clicks where audio is joined."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voxcpm_constants.errors import InputError

Audio = npt.NDArray[np.float32]  # Mono audio (samples,) in [-1, 1]
Pcm = npt.NDArray[np.int16]  # 16-bit mono samples (samples,)

PEAK = 32767  # Of 16-bit samples
_FADE_SECONDS = 0.005  # Long enough to remove a click, too short to be heard
_SILENCE = 10.0 ** (-50.0 / 20.0)  # A peak of -50 dBFS


def pcm16(audio: Audio) -> Pcm:
    """Audio (samples,), clipped to [-1, 1], times 32767, rounded. Raises InputError for NaN and infinity."""
    require_finite(audio, "audio")
    return np.round(np.clip(audio, -1.0, 1.0) * PEAK).astype(np.int16)


def clipped_samples(audio: Audio) -> int:
    """Number of samples outside [-1, 1]."""
    return int(np.count_nonzero(np.abs(audio) > 1.0))


def require_finite(audio: Audio, name: str) -> None:
    """Raises InputError for NaN and infinite samples, on which codecs abort the process."""
    if not np.isfinite(audio).all():
        raise InputError(f"{name}: expected finite samples, but some are NaN or infinite")


def faded_in(audio: Audio, sample_rate: int) -> Audio:
    """The audio (samples,) with its first 5 ms faded in; unchanged if these are silent."""
    return faded_out(audio[::-1], sample_rate)[::-1]


def faded_out(audio: Audio, sample_rate: int) -> Audio:
    """The audio (samples,) with its last 5 ms faded out; unchanged if these are silent.

    The fade is half a period of a cosine, smooth at both ends.
    """
    count = min(len(audio), round(_FADE_SECONDS * sample_rate))
    edge = audio[len(audio) - count :]
    if not count or np.abs(edge).max() < _SILENCE:
        return audio
    gain = 0.5 + 0.5 * np.cos(np.pi * np.arange(1, count + 1) / count)
    return np.concatenate([audio[: len(audio) - count], (edge * gain).astype(np.float32)])
