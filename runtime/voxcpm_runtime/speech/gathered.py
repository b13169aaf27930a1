"""What is kept of a stream: nothing but its progress, or all of it, with segments that an earlier run saved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from voxcpm_constants.errors import InputError, system_errors_as
from voxcpm_runtime.model.sequence import Latents
from voxcpm_runtime.speech.expected_length import Reason
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.planned_segment import PlannedSegment
from voxcpm_runtime.speech.results import Piece, Speech, SpokenSegment


class Heard:
    """What has been heard of a stream: its progress is reported, and of each segment no more is kept than is needed."""

    retries = False
    """Whether a bad segment is tried again."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # In a session there is nothing to be complete.
        self.reporter = plan.reporter() if plan.opening or plan.text is not None else None
        self.cancelled = False
        """Whether the stream was cancelled."""
        self._pieces: dict[int, list[Piece]] = {}
        """Patches of the current attempt at each segment that is being spoken."""

    def knows(self, index: int, planned: PlannedSegment, left: int | None) -> bool:  # noqa: ARG002 - see Gathered
        """Whether the segment need not be spoken."""
        self._pieces.clear()
        return False

    def add(self, piece: Piece) -> None:
        """Take a patch, or drop the attempt so far if the segment begins again."""
        if piece.latents is None:
            self._pieces.pop(piece.segment, None)
            return
        # A stream may be of any length: of a segment that nothing continues, the last patch is enough.
        pieces = self._pieces.setdefault(piece.segment, [])
        if not self.retries and piece.planned is not None and not piece.planned.anchors:
            pieces.clear()
        pieces.append(piece)
        if self.reporter is not None:
            self.reporter.heard(piece)

    def finish(self, index: int, planned: PlannedSegment) -> None:  # noqa: ARG002 - see Gathered
        """The segment is complete."""
        if self.reporter is not None:
            self.reporter.finished(len(planned.text))

    def patches(self, index: int) -> int:
        """Number of patches of a finished segment."""
        return self._pieces[index][-1].patches

    def anchor(self, index: int) -> tuple[Latents, Reason]:
        """The patches of a finished segment (patches, frames, latent_dim), and what is suspicious about it."""
        pieces = self._pieces[index]
        return np.stack([piece.latents for piece in pieces if piece.latents is not None]), pieces[-1].reason


class Gathered(Heard):
    """All that is heard of a plan's speech. Segments may be added in any order, each by one thread."""

    retries = True

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._is_one_segment = plan.read_to_the_end and len(plan.opening) == 1
        self._saved = None if self._is_one_segment else plan.saved_segments
        self._spoken: dict[int, SpokenSegment] = {}
        """Complete segments, by index."""
        self._longest: dict[int, int] = {}
        """Patches of the longest attempt at each segment."""
        self._taken = 0
        """Number of segments that belong to the speech, in order: of those spoken ahead not all may fit."""
        self._complete = False
        """Whether the last segment is taken."""

    def knows(self, index: int, planned: PlannedSegment, left: int | None) -> bool:
        """Whether the segment was spoken or saved, and is as it would be with at most `left` patches.

        The speech has it from now on.
        """
        self._taken, self._complete = index + 1, planned.followed is False
        segment = self._spoken.get(index)
        if segment is not None:
            return _fits(segment, left)
        return self._saved is not None and self.recovers(index, planned, left)

    def recovers(self, index: int, planned: PlannedSegment, left: int | None) -> bool:
        """Whether the segment was saved, as `knows`."""
        segment = None if self._saved is None else self._saved.get(index)
        # Another release may cut the same text elsewhere.
        if segment is None or segment.text != planned.text or not _fits(segment, left):
            return False
        self._keep(index, segment)
        return True

    def add(self, piece: Piece) -> None:
        """Take a patch, or drop the attempt so far if the segment begins again."""
        self._longest[piece.segment] = max(self._longest.get(piece.segment, 0), piece.patches)
        super().add(piece)

    def finish(self, index: int, planned: PlannedSegment) -> None:
        """The segment is complete: join its patches, and save it."""
        segment = self._joined(index, planned)
        if self._saved is not None:
            self._saved.put(index, segment)
        self._keep(index, segment)

    def patches(self, index: int) -> int:
        """Number of patches of a finished segment."""
        return len(self._spoken[index].latents)

    def anchor(self, index: int) -> tuple[Latents, Reason]:
        """The patches of a finished segment (patches, frames, latent_dim), and what is suspicious about it."""
        return self._spoken[index].latents, self._spoken[index].reason

    def patches_before(self, index: int) -> int:
        """Number of patches of the finished segments before this one."""
        return sum(len(segment.latents) for other, segment in list(self._spoken.items()) if other < index)

    def speech(self) -> Speech:
        """The speech: all that it has, and if it was cancelled the complete segments and what there is of the next."""
        spoken = [self._spoken[index] for index in range(self._taken) if index in self._spoken]
        if self.cancelled:
            spoken = self._until_cancelled()
        return self._speech(spoken)

    def _keep(self, index: int, segment: SpokenSegment) -> None:
        if index not in self._spoken and self.reporter is not None:
            self.reporter.finished(len(segment.text))
        self._spoken[index] = segment
        self._pieces.pop(index, None)
        self._longest.pop(index, None)

    def _until_cancelled(self) -> list[SpokenSegment]:
        """The segments that are complete one after another, and what there is of the next one, within `max_len`."""
        kept: list[SpokenSegment] = []
        while len(kept) in self._spoken:
            kept.append(self._spoken[len(kept)])
        pieces = self._pieces.get(len(kept))
        if pieces and pieces[0].planned is not None:
            kept.append(self._joined(len(kept), pieces[0].planned))
        left = self._plan.max_patches
        if left is None:
            return kept
        # Those spoken ahead may be more than that.
        bounded: list[SpokenSegment] = []
        for segment in kept:
            if left > 0:
                samples = left * self._plan.bundle.architecture.patch_output_samples
                bounded.append(
                    replace(segment, audio=segment.audio[:samples], latents=segment.latents[:left])
                )
                left -= len(segment.latents)
        return bounded

    @system_errors_as(InputError)
    def _joined(self, index: int, planned: PlannedSegment) -> SpokenSegment:
        """What has been spoken of a segment in the attempt that is kept."""
        pieces = self._pieces[index]
        last = pieces[-1]
        return SpokenSegment(
            text=planned.text,
            audio=np.concatenate([piece.audio for piece in pieces]),
            latents=np.stack([piece.latents for piece in pieces if piece.latents is not None]),
            seed=self._plan.randomness.seed_of(index, last.attempt - 1),
            attempts=last.attempts,
            stopped=last.stops,
            reason=last.reason,
            expected_seconds=last.expected_seconds,
            ends_paragraph=planned.ends_paragraph,
            longest_attempt=self._longest[index],
        )

    @system_errors_as(InputError)
    def _speech(self, spoken: list[SpokenSegment]) -> Speech:
        a = self._plan.bundle.architecture
        audio = [np.zeros(0, np.float32)]
        for index, segment in enumerate(spoken):
            audio.append(segment.audio)
            if segment.ends_paragraph and index + 1 < len(spoken):
                audio.append(self._plan.pause)
        nothing = np.zeros((0, a.patch_size, a.feat_dim), np.float32)
        return Speech(
            audio=np.concatenate(audio),
            sample_rate=a.output_sample_rate,
            latents=np.concatenate([nothing, *(segment.latents for segment in spoken)]),
            seed=spoken[0].seed if self._is_one_segment and spoken else self._plan.randomness.seed,
            attempts=max((segment.attempts for segment in spoken), default=0),
            stopped=self._complete and not self.cancelled and all(segment.stopped for segment in spoken),
            elapsed_seconds=self.reporter.elapsed if self.reporter else 0.0,
            segments=tuple(spoken),
            cancelled=self.cancelled,
        )


def _fits(segment: SpokenSegment, left: int | None) -> bool:
    """Whether a segment is spoken as with `left` patches at most."""
    return left is None or max(segment.longest_attempt, len(segment.latents)) <= left
