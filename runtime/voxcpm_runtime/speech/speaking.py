"""A whole speech: the stream of every segment, joined. Segments that an earlier run saved are not spoken again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import count

import numpy as np

from voxcpm_runtime.speech.cancellation import Cancelled
from voxcpm_runtime.speech.jobs import run_jobs
from voxcpm_runtime.speech.narrator import Narrator
from voxcpm_runtime.speech.plan import Plan, PlannedSegment
from voxcpm_runtime.speech.results import Piece, Speech, SpokenSegment


def speak(plan: Plan, narrator: Narrator, at_once: int = 1) -> Speech:
    """The plan's speech. Raises Cancelled, unless the plan keeps partial speech.

    at_once: number of segments to speak at the same time, each in a slot of the narrator's.
    """
    reporter = plan.reporter()
    spoken: dict[int, SpokenSegment] = {}
    gathered: dict[int, tuple[PlannedSegment, list[Piece]]] = {}
    saved = None if _is_one_segment(plan) else plan.saved_segments

    def speak_segment(index: int, planned: PlannedSegment) -> None:
        segment = None if saved is None else saved.get(index)
        # Another release may cut the same text elsewhere.
        if segment is None or segment.text != planned.text:
            _, pieces = gathered.setdefault(index, (planned, []))
            for piece in narrator.speak(index, planned, retries=True):
                if piece.latents is None:
                    pieces.clear()
                else:
                    pieces.append(piece)
                    reporter.heard(piece)
            segment = _joined(plan, index, planned, pieces)
            if saved is not None:
                saved.put(index, segment)
        else:
            narrator.continue_from(planned, segment.latents, segment.reason)
        spoken[index] = segment
        gathered.pop(index, None)
        reporter.finished(len(planned.text))

    rest: list[tuple[int, PlannedSegment]] = []
    cancelled = False
    try:
        for index, planned in enumerate(plan.segments):
            # Without a voice, the first segments are the voice of the others.
            if at_once == 1 or planned.anchors:
                speak_segment(index, planned)
            else:
                rest.append((index, planned))
        run_jobs([partial(speak_segment, *each) for each in rest], at_once)
    except Cancelled:
        cancelled = True
    if cancelled:
        # Raised anew: the traceback of the first error has frames that hold the caches.
        if not plan.keep_partial:
            plan.cancel.check()
        spoken = _until_cancelled(plan, spoken, gathered)
    in_order = [spoken[index] for index in sorted(spoken)]
    return _speech(plan, narrator, in_order, reporter.elapsed, cancelled=cancelled)


def _is_one_segment(plan: Plan) -> bool:
    return plan.read_to_the_end and len(plan.opening) == 1


def _until_cancelled(
    plan: Plan,
    spoken: Mapping[int, SpokenSegment],
    gathered: Mapping[int, tuple[PlannedSegment, list[Piece]]],
) -> dict[int, SpokenSegment]:
    """The segments that are complete one after another, and what there is of the next one."""
    whole = next(index for index in count() if index not in spoken)
    kept = {index: spoken[index] for index in range(whole)}
    segment, pieces = gathered.get(whole, (None, []))
    if segment is not None and pieces:
        kept[whole] = _joined(plan, whole, segment, pieces)
    return kept


def _joined(plan: Plan, index: int, segment: PlannedSegment, pieces: list[Piece]) -> SpokenSegment:
    """What has been spoken of a segment: the pieces of the attempt that is kept."""
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
    )


def _speech(
    plan: Plan, narrator: Narrator, spoken: list[SpokenSegment], seconds: float, *, cancelled: bool
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
        stopped=not cancelled and all(segment.stopped for segment in spoken),
        elapsed_seconds=seconds,
        segments=tuple(spoken),
        cancelled=cancelled,
    )
