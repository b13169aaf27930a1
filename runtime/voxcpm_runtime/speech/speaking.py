"""A whole speech: the stream of every segment, joined. Segments that an earlier run saved are not spoken again."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count, takewhile

import numpy as np

from voxcpm_constants.errors import InputError, system_errors_as
from voxcpm_runtime.speech.cancellation import Cancelled
from voxcpm_runtime.speech.jobs import run_jobs
from voxcpm_runtime.speech.narrator import Narrator
from voxcpm_runtime.speech.plan import Plan, PlannedSegment
from voxcpm_runtime.speech.results import Piece, Speech, SpokenSegment, UnspokenWarning


def speak(plan: Plan, narrator: Narrator, at_once: int = 1) -> Speech:
    """The plan's speech. Raises Cancelled, unless the plan keeps partial speech.

    at_once: number of segments to speak at the same time, each in a slot of the narrator's. `max_len` ends the speech
    where it would end with one segment after another, with the same samples.
    """
    speaking = _Speaking(plan, narrator)
    cancelled = False
    try:
        speaking.speak(at_once)
    except Cancelled:
        cancelled = True
    if cancelled and not plan.keep_partial:
        # Raised anew: the traceback of the first error has frames that hold the caches.
        plan.cancel.check()
    spoken = speaking.until_cancelled() if cancelled else speaking.taken
    complete = not cancelled and not speaking.ended_early
    return _speech(plan, narrator, spoken, speaking.reporter.elapsed, complete=complete, cancelled=cancelled)


class _Speaking:
    """The segments of one speech that are spoken so far, and the speaking of the others."""

    def __init__(self, plan: Plan, narrator: Narrator) -> None:
        self._plan = plan
        self._narrator = narrator
        self._saved = None if _is_one_segment(plan) else plan.saved_segments
        self._left = plan.max_patches
        """Patches that may follow those in `taken`; None for any number."""
        self._spoken: dict[int, SpokenSegment] = {}
        self._gathered: dict[int, tuple[PlannedSegment, list[Piece], int]] = {}
        """Segments that are being spoken: what there is of the current attempt, and patches of the longest one."""
        self.reporter = plan.reporter()
        self.taken: list[SpokenSegment] = []
        """The segments of the speech, in order."""
        self.ended_early = False
        """Whether `max_len` was reached before the last segment."""

    def speak(self, at_once: int) -> None:
        """Speak all segments, `at_once` at the same time, as far as `max_len` goes."""
        ahead: list[tuple[int, PlannedSegment]] = []
        for index, planned in enumerate(self._plan.segments):
            # Without a voice, the first segments are the voice of the others.
            if at_once > 1 and not planned.anchors:
                ahead.append((index, planned))
            elif not self._take(index, planned):
                return
        run_jobs([partial(self._speak_ahead, *each) for each in ahead], at_once)
        for index, planned in ahead:
            if not self._take(index, planned):
                return

    def until_cancelled(self) -> list[SpokenSegment]:
        """The segments that are complete one after another, and what there is of the next one."""
        kept = [self._spoken[index] for index in takewhile(self._spoken.__contains__, count())]
        segment, pieces, longest = self._gathered.get(len(kept), (None, [], 0))
        if segment is not None and pieces:
            kept.append(_joined(self._plan, len(kept), segment, pieces, longest))
        return _bounded(kept, self._plan)

    def _take(self, index: int, planned: PlannedSegment) -> bool:
        """Take the segment as the next one, spoken now if it is not yet. False if `max_len` leaves nothing for it."""
        if self._left == 0:
            self._plan.warn(UnspokenWarning.of(index, self._plan.max_patches), UnspokenWarning)
            self.ended_early = True
            return False
        # One that was spoken ahead did not know how many patches the ones before it take.
        if index not in self._spoken or not _fits(self._spoken[index], self._left):
            self._speak(index, planned, self._left)
        segment = self._spoken[index]
        self.taken.append(segment)
        self._left = None if self._left is None else self._left - len(segment.latents)
        return True

    def _speak_ahead(self, index: int, planned: PlannedSegment) -> None:
        before = sum(len(segment.latents) for other, segment in list(self._spoken.items()) if other < index)
        if self._plan.max_patches is None or before < self._plan.max_patches:
            self._speak(index, planned, self._left)

    def _speak(self, index: int, planned: PlannedSegment, left: int | None) -> None:
        """Speak a segment of at most `left` patches, or find it saved."""
        segment = None if self._saved is None else self._saved.get(index)
        # Another release may cut the same text elsewhere.
        if segment is None or segment.text != planned.text or not _fits(segment, left):
            segment = self._newly_spoken(index, planned, left)
            if self._saved is not None:
                self._saved.put(index, segment)
        else:
            self._narrator.continue_from(planned, segment.latents, segment.reason)
        if index not in self._spoken:
            self.reporter.finished(len(planned.text))
        self._spoken[index] = segment
        self._gathered.pop(index, None)

    def _newly_spoken(self, index: int, planned: PlannedSegment, left: int | None) -> SpokenSegment:
        pieces: list[Piece] = []
        longest = 0
        for piece in self._narrator.speak(index, planned, retries=True, left=left):
            if piece.latents is None:
                pieces.clear()
            else:
                pieces.append(piece)
                longest = max(longest, piece.patches)
                self._gathered[index] = planned, pieces, longest
                self.reporter.heard(piece)
        return _joined(self._plan, index, planned, pieces, longest)


def _bounded(segments: list[SpokenSegment], plan: Plan) -> list[SpokenSegment]:
    """The segments as far as `max_len` goes: those spoken ahead may be more than that."""
    left = plan.max_patches
    if left is None:
        return segments
    kept: list[SpokenSegment] = []
    for segment in segments:
        samples = left * plan.bundle.architecture.patch_output_samples
        kept.append(replace(segment, audio=segment.audio[:samples], latents=segment.latents[:left]))
        left -= len(kept[-1].latents)
        if left == 0:
            break
    return kept


def _is_one_segment(plan: Plan) -> bool:
    return plan.read_to_the_end and len(plan.opening) == 1


def _fits(segment: SpokenSegment, left: int | None) -> bool:
    """Whether a segment is spoken as with `left` patches at most."""
    return left is None or max(segment.longest_attempt, len(segment.latents)) <= left


@system_errors_as(InputError)
def _joined(
    plan: Plan, index: int, segment: PlannedSegment, pieces: list[Piece], longest: int
) -> SpokenSegment:
    """What has been spoken of a segment: the pieces of the attempt that is kept. longest: patches of the longest."""
    last = pieces[-1]
    return SpokenSegment(
        text=segment.text,
        audio=np.concatenate([piece.audio for piece in pieces]),
        latents=np.stack([piece.latents for piece in pieces if piece.latents is not None]),
        seed=plan.randomness.seed_of(index, last.attempt - 1),
        attempts=last.attempts,
        stopped=last.stops,
        reason=last.reason,
        expected_seconds=last.expected_seconds,
        ends_paragraph=segment.ends_paragraph,
        longest_attempt=longest,
    )


@system_errors_as(InputError)
def _speech(
    plan: Plan,
    narrator: Narrator,
    spoken: list[SpokenSegment],
    seconds: float,
    *,
    complete: bool,
    cancelled: bool,
) -> Speech:
    a = plan.bundle.architecture
    audio = [np.zeros(0, np.float32)]
    for index, segment in enumerate(spoken):
        audio.append(segment.audio)
        if segment.ends_paragraph and index + 1 < len(spoken):
            audio.append(narrator.pause())
    nothing = np.zeros((0, a.patch_size, a.feat_dim), np.float32)
    return Speech(
        audio=np.concatenate(audio),
        sample_rate=a.output_sample_rate,
        latents=np.concatenate([nothing, *(segment.latents for segment in spoken)]),
        seed=spoken[0].seed if _is_one_segment(plan) and spoken else plan.randomness.seed,
        attempts=max((segment.attempts for segment in spoken), default=0),
        stopped=complete and all(segment.stopped for segment in spoken),
        elapsed_seconds=seconds,
        segments=tuple(spoken),
        cancelled=cancelled,
    )
