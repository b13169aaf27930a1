"""Speech while it is being made: segment after segment, in pieces, and in chunks of several patches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from voxcpm_runtime.argument_types import whole_number
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.speech.cancellation import Cancelled
from voxcpm_runtime.speech.narrator import Narrator
from voxcpm_runtime.speech.plan import Plan, PlannedSegment
from voxcpm_runtime.speech.results import Piece, UnspokenWarning

DEFAULT_CHUNK_PATCHES = 5


def stream(plan: Plan, narrator: Narrator, segments: Iterable[PlannedSegment | None]) -> Iterator[Piece]:
    """The pieces of the segments while they are spoken, with pauses between paragraphs.

    The next segment is taken when the caller has taken all pieces of the one before. None in place of a segment, where
    there is none yet, is a piece without samples. Progress is reported only if the
    plan has segments, not in a session. When cancelled, it raises Cancelled, or with `keep_partial` just ends.
    """
    reporter = plan.reporter() if plan.segments else None
    cancelled = paused = False
    left = plan.max_patches
    index = 0
    try:
        for segment in segments:
            if segment is None:
                yield Piece(np.zeros(0, np.float32), index)
                continue
            if left == 0:
                plan.warn(UnspokenWarning.of(index, plan.options.max_len), UnspokenWarning)
                break
            if paused:
                yield Piece(narrator.pause(), index)
            patches = 0
            for piece in narrator.speak(index, segment, retries=False, left=left):
                patches = piece.patches
                if reporter is not None:
                    reporter.heard(piece)
                yield piece
            if reporter is not None:
                reporter.finished(len(segment.text))
            paused = segment.ends_paragraph
            left = None if left is None else left - patches
            index += 1
    except Cancelled:
        cancelled = True
    if cancelled and not plan.keep_partial:
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
