"""A buffer of fixed size for samples that wait to be read."""

from __future__ import annotations

import numpy as np

from voxcpm_runtime.audio.pcm import Pcm


class RingBuffer:
    """A first-in, first-out buffer of `capacity` 16-bit samples, allocated once. Several threads need a lock."""

    def __init__(self, capacity: int) -> None:
        self._samples = np.zeros(capacity, np.int16)
        self._start = 0
        self.filled = 0
        """Samples that can be read."""

    @property
    def capacity(self) -> int:
        """Samples that fit into the empty buffer."""
        return len(self._samples)

    @property
    def free(self) -> int:
        """Samples that can be written."""
        return self.capacity - self.filled

    def write(self, samples: Pcm) -> None:
        """Append samples (samples,). Raises ValueError if they do not fit."""
        if len(samples) > self.free:
            raise ValueError(f"{len(samples)} samples do not fit {self.free} free ones")
        end = (self._start + self.filled) % self.capacity
        before_wrap = min(len(samples), self.capacity - end)
        self._samples[end : end + before_wrap] = samples[:before_wrap]
        self._samples[: len(samples) - before_wrap] = samples[before_wrap:]
        self.filled += len(samples)

    def read(self, count: int) -> Pcm:
        """Remove the oldest samples and return them as a copy (count,). Raises ValueError if there are fewer."""
        if count > self.filled:
            raise ValueError(f"{count} samples are more than the {self.filled} that are there")
        before_wrap = min(count, self.capacity - self._start)
        out = np.empty(count, np.int16)
        out[:before_wrap] = self._samples[self._start : self._start + before_wrap]
        out[before_wrap:] = self._samples[: count - before_wrap]
        self._start = (self._start + count) % self.capacity
        self.filled -= count
        return out
