"""Speeches that come and go at any time, and share the calls of step models that were converted for a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from voxcpm_constants.errors import InputError
from voxcpm_runtime.argument_types import instance, wrong_type
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.model.batch_slots import BatchSlots
from voxcpm_runtime.speech.cancellation import CancelToken
from voxcpm_runtime.speech.narrator import Narrator
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.results import Piece, Speech
from voxcpm_runtime.speech.speaking import speak
from voxcpm_runtime.speech.streaming import DEFAULT_CHUNK_PATCHES, checked_chunking, chunked, stream
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

    def __init__(self, slots: BatchSlots, narrator: Callable[[Plan, BatchSlots], Narrator]) -> None:
        """Make one. narrator: the function that makes a plan's narrator over the slots."""
        self._slots: BatchSlots | None = slots
        self._narrator = narrator
        self._closed = CancelToken()
        self.slots = slots.count
        """Number of slots: segments that are spoken at the same time."""

    def speak_plan(self, plan: Plan) -> Speech:
        """The speech of a plan. Errors and warnings: see `VoxCPM.speak`; Cancelled also if the batch is closed."""
        plan, narrator = self._joined(plan)
        return speak(plan, narrator, min(plan.parallel_segments, self.slots))

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
        return plan, self._narrator(plan, slots)
