"""How far a speech is, told after every patch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from voxcpm_runtime.speech.attempts import Utterance
from voxcpm_runtime.speech.narrator import Piece
from voxcpm_runtime.text.segments import Segment


@dataclass(frozen=True)
class Progress:
    """Where a speech is. Of a text that is not long there is one segment."""

    patches: int
    """Of this attempt at this segment."""
    audio_seconds: float
    """Of speech so far, all segments together."""
    elapsed_seconds: float
    """Of work, without that on attempts that were given up."""
    attempt: int
    """From 1; above it, earlier attempts were too long for their text."""
    segment: int = 0
    """Which one is being spoken, from 0."""
    segments: int = 1
    remaining_seconds: float | None = None
    """Of work, by how long the finished segments took for their length; None before there is one."""

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of speech; below 1 is faster than it is heard."""
        return self.elapsed_seconds / self.audio_seconds


ProgressCallback = Callable[[Progress], None]


class Telling:
    """Tells `callback` of the patches of one call; several segments may be under way, each in a thread."""

    def __init__(
        self, callback: ProgressCallback | None, segments: Sequence[Segment], patch_seconds: float
    ) -> None:
        self._callback = callback
        self._lengths = [len(segment.text) for segment in segments]
        self._patch_seconds = patch_seconds
        self._started = time.perf_counter()
        self._lock = threading.Lock()
        self._patches: dict[int, int] = {}
        """Of the present attempt at each segment that was begun."""
        self._begun: dict[int, float] = {}
        """When its first attempt began; the present one may have begun later."""
        self._wasted: dict[int, float] = {}
        """Seconds of the attempts before."""
        self._finished_length = 0
        self._finished_at = 0.0
        self._present: dict[int, Utterance] = {}

    @property
    def elapsed(self) -> float:
        """Seconds since the call began."""
        return time.perf_counter() - self._started

    def spoken(self, utterance: Utterance, index: int) -> None:
        """A patch of a segment that is kept whole."""
        with self._lock:
            self._present[index] = utterance
            began = self._begun.setdefault(index, utterance.began)
            self._wasted[index] = utterance.began - began
            self._tell(index, len(utterance.spoken), utterance.attempt)

    def finished(self, index: int) -> None:
        """A segment is whole."""
        with self._lock:
            self._present.pop(index, None)
            self._finished_length += self._lengths[index]
            self._finished_at = self._worked()

    def present(self, index: int) -> Utterance | None:
        """A segment of which something has been spoken, and not all."""
        return self._present.get(index)

    def heard(self, piece: Piece) -> None:
        """A patch, or a pause, of a segment that is streamed."""
        if piece.patches:
            if piece.segment not in self._patches and piece.segment:
                self.finished(piece.segment - 1)
            self._tell(piece.segment, piece.patches, 1)

    def _worked(self) -> float:
        return self.elapsed - sum(self._wasted.values())

    def _tell(self, index: int, patches: int, attempt: int) -> None:
        self._patches[index] = patches
        if self._callback is None:
            return
        worked, remaining = self._worked(), None
        if self._finished_length:
            remaining = max(0.0, self._finished_at / self._finished_length * sum(self._lengths) - worked)
        self._callback(
            Progress(
                patches=patches,
                audio_seconds=sum(self._patches.values()) * self._patch_seconds,
                elapsed_seconds=worked,
                attempt=attempt,
                segment=index,
                segments=len(self._lengths),
                remaining_seconds=remaining,
            )
        )
