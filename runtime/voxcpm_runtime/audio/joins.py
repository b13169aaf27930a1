"""Edges of audio that other audio is joined to: a step there would be heard as a click."""

from __future__ import annotations

import numpy as np

from voxcpm_runtime.audio.pcm import SILENCE_DBFS, Audio

FADE_SECONDS = 0.005
"""Length of a fade: long enough that no step is left, too short to be heard as one."""
_SILENCE = 10.0 ** (SILENCE_DBFS / 20.0)


def faded_in(audio: Audio, sample_rate: int) -> Audio:
    """The audio (samples,), risen from zero over its first 5 ms; unchanged if these are silent."""
    return faded_out(audio[::-1], sample_rate)[::-1]


def faded_out(audio: Audio, sample_rate: int) -> Audio:
    """The audio (samples,), fallen to zero over its last 5 ms; unchanged if these are silent.

    The fade is half a period of a cosine, so it has no corner at either end.
    """
    count = min(len(audio), round(FADE_SECONDS * sample_rate))
    edge = audio[len(audio) - count :]
    if not count or np.abs(edge).max() < _SILENCE:
        return audio
    gain = 0.5 + 0.5 * np.cos(np.pi * np.arange(1, count + 1) / count)
    return np.concatenate([audio[: len(audio) - count], (edge * gain).astype(np.float32)])
