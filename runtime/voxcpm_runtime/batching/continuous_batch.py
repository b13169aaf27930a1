"""Speeches that come and go at any time, and share the calls of step models that were converted for a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from voxcpm_constants.errors import InputError
from voxcpm_runtime.argument_types import instance, wrong_type
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.batching.jobs import run_jobs
from voxcpm_runtime.batching.slots import BatchSlots
from voxcpm_runtime.model.driver import Prefix
from voxcpm_runtime.speech.attempts import attempts
from voxcpm_runtime.speech.cancellation import CancelToken
from voxcpm_runtime.speech.gathered import Gathered
from voxcpm_runtime.speech.narrator import Narrator, Speaking
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.planned_segment import PlannedSegment
from voxcpm_runtime.speech.results import Piece, Speech
from voxcpm_runtime.speech.stream import DEFAULT_CHUNK_PATCHES, checked_chunking, chunked, stream
from voxcpm_runtime.speech.utterance import Utterance
from voxcpm_runtime.text.segments import Segment

if TYPE_CHECKING:
    from typing_extensions import Self


class ContinuousBatch:
    """The slots of one batch, which speeches join while others speak; make one with `VoxCPM.continuous_batch`.

        with tts.continuous_batch() as batch:
            for audio in batch.stream_plan(tts.plan("Hello.", seed=7)):  # and others, on threads of their own
                play(audio)

    Sessions join it, too: `tts.session(batch=batch)`.

    Each call speaks on the thread that makes it, and takes a slot for each of its segments in turn; while no slot is
    free, it waits for one. The samples are those of the same call without others. Speeches may differ in everything:
    voice, options, number of Euler steps. A plan's `cancel` and `progress` belong to its speech alone, and an error
    ends only the speech that it is in. Whoever reads a stream slowly, or stays in `progress`, delays no other speech.

    Recordings are encoded, and what the language models make of a voice is computed, beside the batch.
    """

    def __init__(self, slots: BatchSlots, narrator: Callable[[Plan, Speaking], Narrator]) -> None:
        """Make one. narrator: the function that makes a plan's narrator."""
        self._slots: BatchSlots | None = slots
        self._narrator = narrator
        self._closed = CancelToken()
        self.slots = slots.count
        """Number of slots: segments that are spoken at the same time."""

    def speak_plan(self, plan: Plan) -> Speech:
        """The speech of a plan. Errors and warnings: see `VoxCPM.speak`; Cancelled also if the batch is closed."""
        plan, narrator = self._joined(plan)
        gathered, at_once = Gathered(plan), min(plan.parallel_segments, self.slots)
        segments = plan.segments if at_once == 1 else _ahead(plan, narrator, gathered, at_once)
        for _ in stream(plan, narrator, segments, gathered):
            pass
        return gathered.speech()

    def stream_plan(
        self,
        plan: Plan,
        *,
        chunk_patches: int = DEFAULT_CHUNK_PATCHES,
        first_chunk_patches: int | None = None,
    ) -> Iterator[Audio]:
        """The speech of a plan in chunks (samples,). Arguments, errors and warnings: see `VoxCPM.generate_streaming`.

        A slot is taken when the first chunk is asked for. Closing the iterator makes it free.
        """
        chunking = checked_chunking(chunk_patches, first_chunk_patches)
        plan, narrator = self._joined(plan)
        return chunked(stream(plan, narrator, plan.segments), *chunking)

    def narrate(self, plan: Plan, segments: Iterable[Segment | None]) -> Iterator[Piece]:
        """The speech of segments that come while it is made, as a session's do; a slot is taken only to speak one.

        plan: one without a text. None in place of a segment, where there is none yet, is a piece without samples.
        Errors and warnings: see `VoxCPM.generate_streaming`.
        """
        plan, narrator = self._joined(plan)
        if isinstance(segments, str | bytes) or not isinstance(segments, Iterable):
            raise wrong_type(segments, "segments", "an iterable of segments")
        return stream(plan, narrator, plan.read(segments))

    def close(self) -> None:
        """End all that is being spoken, at the next Euler step: those calls raise Cancelled. Nothing new may begin."""
        self._closed.cancel()
        self._slots = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _joined(self, plan: Plan) -> tuple[Plan, Narrator]:
        """The plan, which the batch's end cancels, too, and its narrator."""
        instance(plan, Plan, "plan", "a Plan")
        slots = self._slots
        if slots is None:
            raise InputError("this batch was closed; make another one")
        plan = replace(plan, cancel=CancelToken(plan.cancel, self._closed))
        return plan, self._narrator(plan, partial(_attempts_in_slot, plan, slots))


def _attempts_in_slot(
    plan: Plan, slots: BatchSlots, utterance: Utterance, prefix: Prefix | None, *, retries: bool
) -> Iterator[Piece]:
    """The patches of an utterance, which has a slot until the last one is taken."""
    ending = CancelToken(plan.cancel)
    with slots.taken(ending.check) as slot:
        pieces = attempts(plan, slot.driver, utterance, prefix, retries=retries, ending=ending)
        yield from slot.handed_over(pieces)


def _ahead(plan: Plan, narrator: Narrator, gathered: Gathered, at_once: int) -> Iterator[PlannedSegment]:
    """The plan's segments. When the first one that is no part of the voice is asked for, all of these are spoken.

    Without a voice, the first segments are the voice of the others. `max_len` ends the speech where it would end with
    one segment after another: one that turns out to have less room is spoken again.
    """
    ahead: list[tuple[int, PlannedSegment]] = []
    for index, planned in enumerate(plan.segments):
        if planned.anchors:
            yield planned
        else:
            ahead.append((index, planned))
    left = plan.max_patches
    if left is not None and ahead:
        left -= gathered.patches_before(ahead[0][0])

    def speak(index: int, planned: PlannedSegment) -> None:
        if plan.max_patches is not None and gathered.patches_before(index) >= plan.max_patches:
            return
        if gathered.recovers(index, planned, left):
            return
        for piece in narrator.speak(index, planned, retries=True, left=left):
            gathered.add(piece)
        gathered.finish(index, planned)

    if left is None or left > 0:
        run_jobs([partial(speak, *each) for each in ahead], at_once)
    yield from (planned for _, planned in ahead)
