"""The channels of a recording, averaged to one."""

from __future__ import annotations

import numpy as np

from voxcpm_runtime.audio.pcm import Audio

# Independent channels have a ratio of 0.71, a sound in one of eight has 0.35.
_CANCELLED = 0.25


class Decoded(tuple[Audio, int]):
    """Samples (samples,) in [-1, 1] and their rate in Hz. fault: what is wrong with the recording, if anything."""

    fault = ""


class Downmix:
    """Averages channels, block by block; if they cancel each other, as with swapped wires, uses the first alone."""

    def __init__(self) -> None:
        self._mean: list[Audio] = [np.empty(0, np.float32)]
        self._first: list[Audio] = []
        self._energies = np.zeros(2)  # of the average, and of the channels on average

    @np.errstate(over="ignore", invalid="ignore")  # `require_finite` reports NaN and infinity
    def add(self, block: Audio) -> None:
        """Add samples (frames, channels)."""
        mean: Audio = block.mean(axis=1, dtype=np.float32)
        self._mean.append(mean)
        if block.shape[1] > 1:
            self._first.append(block[:, 0].copy())
            self._energies += np.vdot(mean, mean), np.vdot(block, block) / block.shape[1]

    def decoded(self, rate: int) -> Decoded:
        """All samples. rate: theirs, in Hz."""
        mixed, channels = np.sqrt(self._energies)
        if not mixed < _CANCELLED * channels:
            return Decoded((np.concatenate(self._mean), rate))
        decoded = Decoded((np.concatenate(self._first), rate))
        decoded.fault = (
            "its channels cancel each other, so only the first one is used; invert one of them to use both"
        )
        return decoded
