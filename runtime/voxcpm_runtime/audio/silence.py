"""Silence before and after speech, cut to 200 ms, as upstream does (`_trim_audio_silence_vad`, model/voxcpm2.py).

Upstream finds both ends with librosa 0.11 (`effects.trim`), and may then choose an earlier end by its own test.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voxcpm_runtime.audio.pcm import Audio

FRAME = 2048
"""Samples in a frame, for which one level is computed, at any sample rate."""
HOP = 512
"""Samples from the start of one frame to the start of the next."""
RANGE_DB = 35.0
"""A frame that is this many decibels below the loudest one is silence."""
KEPT_MS = 200
"""Milliseconds of silence that stay at either end."""
_MIN_LEVEL = np.float32(1e-5)  # librosa's floor: below it all frames are equally loud


def trim_silence(audio: Audio, sample_rate: int) -> Audio:
    """A view of audio (samples,) at `sample_rate` Hz from 200 ms before its first sound to 200 ms after its last.

    Audio that is all zeros is returned whole.
    """
    if not audio.any():
        return audio
    start, end = _sounding(audio)
    kept = KEPT_MS * sample_rate // 1000
    return audio[max(0, start - kept) : end + kept]


def _sounding(audio: Audio) -> tuple[int, int]:
    """Start and end of the samples within RANGE_DB of the loudest frame; the end is at most `_last_voice`."""
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
    """The levels (frames,) in decibels relative to the highest one."""
    floored = np.maximum(levels, _MIN_LEVEL)
    return 20.0 * np.log10(floored / floored.max())
