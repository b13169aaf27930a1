"""Progress of a speech, reported after every patch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from voxcpm_runtime.speech.results import Piece


@dataclass(frozen=True)
class Progress:
    """The progress of a speech. A short text is one segment."""

    patches: int
    """Patches so far in this attempt at this segment."""
    audio_seconds: float
    """Seconds of speech so far, all segments together."""
    elapsed_seconds: float
    """Seconds of work, without those of discarded attempts."""
    attempt: int
    """Number of this attempt, from 1; earlier ones were bad."""
    segment: int = 0
    """Index of the segment that is being spoken, from 0."""
    segments: int | None = 1
    """Number of segments; None for a long text, which is read while it is spoken."""
    remaining_seconds: float | None = None
    """Estimated seconds of work left, from the segments finished so far; None before there is one."""
    segment_tokens: int = 0
    """Number of tokens of the text of the segment that is being spoken."""

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of speech; below 1 is faster than real time."""
        return self.elapsed_seconds / self.audio_seconds


ProgressCallback = Callable[[Progress], None]


class ProgressReporter:
    """Calls `callback` after every patch of a call; several threads may each speak a segment.

    characters: length of the text. segments: number of its segments, None if it is not known. patch_seconds: seconds of
    audio in a patch.
    """

    def __init__(
        self,
        callback: ProgressCallback | None,
        *,
        characters: int,
        segments: int | None,
        patch_seconds: float,
    ) -> None:
        self._callback = callback
        self._characters = characters
        self._segments = segments
        self._patch_seconds = patch_seconds
        self._started = time.perf_counter()
        self._lock = threading.Lock()
        self._patches: dict[int, int] = {}
        """Patches of the current attempt, by index of the segment."""
        self._first_began: dict[int, float] = {}
        self._wasted: dict[int, float] = {}
        """Seconds of discarded attempts, by index of the segment."""
        self._finished_length = 0
        self._finished_at = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the call began."""
        return time.perf_counter() - self._started

    def heard(self, piece: Piece) -> None:
        """Report a patch."""
        with self._lock:
            index = piece.segment
            self._patches[index] = piece.patches
            self._wasted[index] = piece.began - self._first_began.setdefault(index, piece.began)
            if self._callback is not None:
                self._callback(self._progress(piece))

    def finished(self, characters: int) -> None:
        """Note that a segment of so many characters is complete."""
        with self._lock:
            self._finished_length += characters
            self._finished_at = self._worked()

    def _worked(self) -> float:
        return self.elapsed - sum(self._wasted.values())

    def _progress(self, piece: Piece) -> Progress:
        worked, remaining = self._worked(), None
        if self._finished_length:
            remaining = max(0.0, self._finished_at / self._finished_length * self._characters - worked)
        return Progress(
            patches=piece.patches,
            audio_seconds=sum(self._patches.values()) * self._patch_seconds,
            elapsed_seconds=worked,
            attempt=piece.attempt,
            segment=piece.segment,
            segments=self._segments,
            remaining_seconds=remaining,
            segment_tokens=piece.planned.target_tokens if piece.planned else 0,
        )
