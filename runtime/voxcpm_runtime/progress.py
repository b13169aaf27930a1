"""How far a speech is, told after every patch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from voxcpm_runtime.narration import Piece
from voxcpm_runtime.segments import Segment
from voxcpm_runtime.utterance import Utterance


@dataclass(frozen=True)
class Progress:
    """Where a speech is. Of a text that is not long there is one segment."""

    patches: int
    """Of this attempt at this segment."""
    audio_seconds: float
    """Of speech so far, all segments together."""
    elapsed_seconds: float
    """Of work: on this attempt, and on all segments before."""
    attempt: int
    """From 1; above it, earlier attempts were too long for their text."""
    segment: int = 0
    """Which one is being spoken, from 0."""
    segments: int = 1
    remaining_seconds: float | None = None
    """Of work, by how long the segments before took for their length; None before there are any."""

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of speech; below 1 is faster than it is heard."""
        return self.elapsed_seconds / self.audio_seconds


ProgressCallback = Callable[[Progress], None]


class Telling:
    """Tells `callback` of the patches of one call."""

    def __init__(
        self, callback: ProgressCallback | None, segments: Sequence[Segment], patch_seconds: float
    ) -> None:
        self._callback = callback
        self._lengths = [len(segment.text) for segment in segments]
        self._patch_seconds = patch_seconds
        self._started = time.perf_counter()
        self._segment = 0
        self._patches = 0
        """Of the present segment."""
        self._patches_before = 0
        self._seconds_before = 0.0
        """Until the present segment began."""
        self._present: tuple[int, Utterance] | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the call began."""
        return time.perf_counter() - self._started

    def spoken(self, utterance: Utterance, index: int) -> None:
        """A patch of a segment that is kept whole."""
        self._present = index, utterance
        self._tell(index, len(utterance.spoken), utterance.attempt, time.perf_counter() - utterance.began)

    def present(self, index: int) -> Utterance | None:
        """The segment of that index, if something of it has been spoken."""
        return self._present[1] if self._present is not None and self._present[0] == index else None

    def heard(self, piece: Piece) -> None:
        """A patch, or a pause, of a segment that is streamed."""
        if piece.patches:
            self._tell(piece.segment, piece.patches, 1, None)

    def _tell(self, index: int, patches: int, attempt: int, seconds: float | None) -> None:
        """seconds: of work on this attempt; None: all since the segment before."""
        if index != self._segment:
            self._patches_before += self._patches
            self._seconds_before, self._segment = self.elapsed, index
        self._patches = patches
        if self._callback is None:
            return
        worked = self.elapsed if seconds is None else self._seconds_before + seconds
        self._callback(
            Progress(
                patches=patches,
                audio_seconds=(self._patches_before + patches) * self._patch_seconds,
                elapsed_seconds=worked,
                attempt=attempt,
                segment=index,
                segments=len(self._lengths),
                remaining_seconds=self._remaining(index, worked),
            )
        )

    def _remaining(self, index: int, worked: float) -> float | None:
        if not index:
            return None
        each = self._seconds_before / sum(self._lengths[:index])
        return max(0.0, each * sum(self._lengths) - worked)
