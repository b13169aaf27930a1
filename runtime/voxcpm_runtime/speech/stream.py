"""Speech while it is being made, segment after segment. A whole speech is its stream, gathered.

plan ─► segments ─► attempts at each ─► pieces ─► chunks of audio, or a `Speech`

Limits, pauses, progress, warnings and cancellation are here alone: sessions, batches, jobs and the server read from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from voxcpm_runtime.argument_types import whole_number
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.speech.cancellation import Cancelled
from voxcpm_runtime.speech.gathered import Gathered, Heard
from voxcpm_runtime.speech.narrator import Narrator
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.planned_segment import PlannedSegment
from voxcpm_runtime.speech.results import Piece, Speech, UnspokenWarning

DEFAULT_CHUNK_PATCHES = 5


def speak(plan: Plan, narrator: Narrator) -> Speech:
    """The plan's whole speech. Raises Cancelled, unless the plan keeps partial speech."""
    gathered = Gathered(plan)
    for _ in stream(plan, narrator, plan.segments, gathered):
        pass
    return gathered.speech()


def stream(
    plan: Plan,
    narrator: Narrator,
    segments: Iterable[PlannedSegment | None],
    heard: Heard | None = None,
) -> Iterator[Piece]:
    """The pieces of the segments while they are spoken, with pauses between paragraphs.

    heard: what is kept of them; with `Gathered` a bad segment is tried again. The next segment is taken when the caller
    has taken all pieces of the one before. For None in place of a segment, where there is none yet, it gives a piece
    without samples. When cancelled, it raises Cancelled, or with `keep_partial` ends.
    """
    heard = heard or Heard(plan)
    left = plan.max_patches
    index, paused = 0, False
    try:
        for segment in segments:
            if segment is None:
                yield Piece(np.zeros(0, np.float32), index)
                continue
            if left == 0:
                plan.warn(UnspokenWarning.of(index, plan.options.max_len), UnspokenWarning)
                break
            if paused:
                yield Piece(plan.pause, index)
            if not heard.knows(index, segment, left):
                for piece in narrator.speak(index, segment, retries=heard.retries, left=left):
                    heard.add(piece)
                    yield piece
                heard.finish(index, segment)
            if segment.anchors:
                narrator.continue_from(segment, *heard.anchor(index))
            left = None if left is None else left - heard.patches(index)
            index, paused = index + 1, segment.ends_paragraph
    except Cancelled:
        heard.cancelled = True
    if heard.cancelled and not plan.keep_partial:
        # Raised anew: the traceback of the first error has frames that hold the caches.
        plan.cancel.check()


def checked_chunking(chunk_patches: object, first_chunk_patches: object) -> tuple[int, int]:
    """Patches of the first chunk and of the others.

    first_chunk_patches: None means as many as in the others. Raises InputError for a number that is not whole or is
    below 1.
    """
    others = whole_number(chunk_patches, "chunk_patches", 1, "patches")
    if first_chunk_patches is None:
        return others, others
    return whole_number(first_chunk_patches, "first_chunk_patches", 1, "patches"), others


def chunked(pieces: Iterable[Piece], first: int, others: int) -> Iterator[Audio]:
    """The pieces' audio in chunks (samples,) of `first` and then `others` patches; a pause joins the patch after it."""
    wanted = first
    gathered: list[Audio] = []
    patches = 0
    for piece in pieces:
        gathered.append(piece.audio)
        patches += piece.latents is not None
        if patches == wanted:
            yield np.concatenate(gathered)
            gathered, patches, wanted = [], 0, others
    if gathered:
        yield np.concatenate(gathered)
