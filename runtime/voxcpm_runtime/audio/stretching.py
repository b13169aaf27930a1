"""Changes the speed of speech without changing its pitch."""

from __future__ import annotations

import numpy as np

from voxcpm_runtime.audio.pcm import Audio

_OVERLAP_SECONDS = 0.015
_SEARCH_SECONDS = 0.0125
"""Maximum shift of a window in either direction: together one period of a 40 Hz voice."""


class Stretching:
    """Speeds up streamed audio by the factor `speed`; the samples do not depend on how the stream is split.

    WSOLA (Verhelst and Roelands, 1993): the output advances by one overlap at a time, the input by `speed` overlaps.
    Each window is shifted to where the input is most similar to the continuation of the previous window.
    """

    def __init__(self, speed: float, sample_rate: int) -> None:
        self._speed = speed
        self._hop, self._search = round(_OVERLAP_SECONDS * sample_rate), round(_SEARCH_SECONDS * sample_rate)
        self._rise = 0.5 - 0.5 * np.cos(np.pi * (np.arange(self._hop) + 0.5) / self._hop)
        self._input = np.zeros(0, np.float32)  # From sample `_start` on
        self._start = self._received = self._returned = 0  # In samples
        self._continued: int | None = None  # Where the last window would continue

    def __call__(self, audio: Audio, *, last: bool = False) -> Audio:
        """The next samples of the output (samples,). last: whether this is the last piece of the input."""
        if self._speed == 1:
            return audio
        hop, search = self._hop, self._search
        self._received += len(audio)
        self._input = np.concatenate([self._input, audio])
        total = round(self._received / self._speed)
        parts = [np.zeros(0, np.float32)]
        while self._returned < total:
            place = round(self._returned * self._speed)
            before = place if self._continued is None else self._continued
            lacking = max(place + search, before) + 2 * hop - self._received
            if not last and (lacking > 0 or self._returned + hop > total):
                break
            window = self._samples(before, 2 * hop)
            if lacking <= 0 and before != place:
                first = max(0, place - search)
                place = first + _most_similar(self._samples(first, place + search - first + 2 * hop), window)
            part = window[:hop] + self._rise * (self._samples(place, hop) - window[:hop])
            parts.append(part.astype(np.float32))
            self._returned += hop
            self._continued = place + hop
            unneeded = min(self._continued, round(self._returned * self._speed) - search) - self._start
            dropped = min(max(0, unneeded), len(self._input))
            self._input, self._start = self._input[dropped:], self._start + dropped
        if last and self._returned > total:
            parts[-1] = parts[-1][: total - self._returned]
        return np.concatenate(parts)

    def _samples(self, at: int, count: int) -> Audio:
        """Samples of the input from `at` on, zero-padded after its end."""
        found = self._input[at - self._start :][:count]
        return np.pad(found, (0, count - len(found)))


def _most_similar(audio: Audio, window: Audio) -> int:
    """Offset in `audio` with the maximum normalised cross-correlation with the window."""
    size = 1 << (len(audio) + len(window)).bit_length()
    product = np.fft.irfft(np.fft.rfft(audio, size) * np.fft.rfft(window, size).conj(), size)
    count = len(audio) - len(window) + 1
    energy = np.concatenate([[0.0], np.cumsum(np.square(audio, dtype=np.float64))])
    return int(np.argmax(product[:count] / np.sqrt(energy[len(window) :] - energy[: -len(window)] + 1e-6)))
