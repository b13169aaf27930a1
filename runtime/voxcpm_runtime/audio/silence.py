"""Silence before and after speech, cut to 200 ms, as upstream does (`_trim_audio_silence_vad`, model/voxcpm2.py).

Upstream asks librosa 0.11 (`effects.trim`) for both ends, and then may pull in the latter end by a test of its own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voxcpm_runtime.audio.pcm import Audio

FRAME = 2048
"""Samples whose level is taken together, at any sample rate."""
HOP = 512
"""Samples from one frame to the next."""
RANGE_DB = 35.0
"""What is so far below the loudest is silence."""
KEPT_MS = 200
"""Of silence at either end."""
_LEAST_LEVEL = np.float32(1e-5)  # librosa's floor: below it all frames are equally loud


def trim_silence(audio: Audio, sample_rate: int) -> Audio:
    """The part of audio (samples,) at `sample_rate` Hz from 200 ms before its first sound to 200 ms after its last.

    A view. Audio that is silence throughout, all zeros, is returned whole.
    """
    if not audio.any():
        return audio
    start, end = _sounding(audio)
    kept = KEPT_MS * sample_rate // 1000
    return audio[max(0, start - kept) : end + kept]


def _sounding(audio: Audio) -> tuple[int, int]:
    """First and end sample of what is within RANGE_DB of the loudest frame, the end not beyond `_last_voice`."""
    centred = np.pad(audio, FRAME // 2)
    decibels = _decibels(_levels(centred))
    loud = np.flatnonzero(decibels > -RANGE_DB)
    return int(loud[0]) * HOP, min(len(audio), int(loud[-1] + 1) * HOP, _last_voice(audio))


def _last_voice(audio: Audio) -> int:
    """End of the last frame whose level is within RANGE_DB of the highest peak, which noise after speech is not."""
    if len(audio) < FRAME:
        return len(audio)
    threshold = np.abs(audio).max() * 10.0 ** (-RANGE_DB / 20.0)
    voiced = np.flatnonzero(_levels(audio) >= threshold)
    return int(voiced[-1]) * HOP + FRAME if len(voiced) else len(audio)


def _levels(audio: Audio) -> npt.NDArray[np.float32]:
    """Root mean square (frames,) of every whole frame."""
    frames = np.lib.stride_tricks.sliding_window_view(audio, FRAME)[::HOP]
    return np.sqrt(np.mean(np.square(frames), axis=1))


def _decibels(levels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Relative to the highest of the levels (frames,)."""
    floored = np.maximum(levels, _LEAST_LEVEL)
    return 20.0 * np.log10(floored / floored.max())
