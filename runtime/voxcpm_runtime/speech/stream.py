"""Streaming speech, segment by segment. Whole speech is the stream, gathered.

plan ─► segments ─► attempts at each ─► pieces ─► chunks of audio, or a `Speech`

Limits, pauses, warnings and cancellation are handled here alone, for sessions, batches, jobs and the server.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from voxcpm_constants.errors import InputError, VoxCPMError, system_errors_as, warn
from voxcpm_runtime.argument_types import whole_number
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.model.driver import Driver, Prefix
from voxcpm_runtime.speech.attempts import attempt, attempts
from voxcpm_runtime.speech.budget import count_letters
from voxcpm_runtime.speech.gathering import SpeechBuilder
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.request import Cancelled
from voxcpm_runtime.speech.results import Piece, PlannedSegment, SpokenSegment, UnspokenWarning
from voxcpm_runtime.speech.spine import prefilled, prepared
from voxcpm_runtime.text.control import without_control
from voxcpm_runtime.text.normalization import spelled_transcript
from voxcpm_runtime.voices.voice import Voice, VoiceHeader

# A sentence left out at the beginning shows at the sixth patch, and is repaired if the first chunk is still held.
DEFAULT_CHUNK_PATCHES = 6
# Patches of a stream that are handed out at once, and then held back: a jump is noticed three patches later, and
# repaired from two before it.
_AT_ONCE, _MAX_HELD = 5, 5


def stream(
    plan: Plan, segments: Iterable[PlannedSegment | None], driver: Driver, voice: Voice | None,
    prefix: Callable[[Voice], Prefix], whole: SpeechBuilder | None = None, first: int = 1,
) -> Iterator[Piece]:  # fmt: skip
    """Yield the pieces of the segments as they are spoken, with pauses between paragraphs.

    voice: the plan's, encoded; without one, the first segments become the voice of the others. prefix: computes the
    language models' states of a voice. whole: gathers the speech; then bad segments are retried. Segments are consumed
    one by one, each after all pieces of the previous one. None, if there is no segment yet, yields a piece without
    samples. If cancelled, raises Cancelled, or returns with `keep_partial`.
    """
    builder, held = whole or SpeechBuilder(plan, whole=False), None if whole else _HeldPieces(plan, first)
    speaker, index, paused = _Speaker(plan, driver, voice, prefix), 0, False
    # Other segments depend on the length or the noise of those before.
    if (
        held is None
        and plan.request.parallel_segments > 1
        and plan.request.rng is None
        and speaker.left is None
    ):
        segments = speaker.ahead(segments)
    try:
        for segment in segments:
            if segment is None:
                yield Piece(np.zeros(0, np.float32), index)
                continue
            if speaker.left == 0:
                warn(
                    f"max_len ({plan.options.max_len} patches) is reached before segment {index + 1}: the rest of the "
                    "text is not spoken",
                    UnspokenWarning,
                )
                break
            if paused or segment.before is not None:
                usual = plan.options.paragraph_pause / plan.options.speed
                yield from builder.pause(index, segment, usual if segment.before is None else segment.before)
            spoken = builder.saved(index, segment)
            if spoken is None:
                for piece in speaker.known.pop(index, None) or speaker.pieces(index, segment, held):
                    builder.add(piece)
                    if held is None:
                        yield piece
                    else:
                        spoken = builder.finish(index, segment) if piece.last else None
                        yield from held.hand_out(replace(piece, spoken=spoken))
                spoken = spoken or builder.finish(index, segment)
            speaker.heard(segment, spoken)
            if segment.after:
                yield from builder.pause(index, segment, segment.after)
            index, paused = index + 1, segment.ends_paragraph
    except Cancelled:
        builder.cancelled = True
    if builder.cancelled and not plan.request.keep_partial:
        # A new exception: the traceback of the first one keeps the KV caches alive.
        plan.cancel.check()


class _Speaker:
    """Speaks one segment after another in the plan's voice, or in that of the first ones."""

    def __init__(
        self, plan: Plan, driver: Driver, voice: Voice | None, prefix: Callable[[Voice], Prefix]
    ) -> None:
        self._plan, self._driver, self._voice, self._prefix = plan, driver, voice, prefix
        # Letters spoken in the voice's prompt; None once it includes a suspicious segment.
        self._letters: int | None = 0 if voice is None else _spoken_letters(voice, plan.bundle)
        self.left = None if plan.text is None else plan.options.max_len
        """Patches left of `max_len`; None for no limit, as in a session."""
        self.known: dict[int, Iterator[Piece]] = {}
        """The pieces of segments that were spoken ahead of their turn, by index."""

    def ahead(self, segments: Iterable[PlannedSegment | None]) -> Iterator[PlannedSegment | None]:
        """Yield the segments; up to `parallel_segments` are spoken before the first of them is yielded."""
        from voxcpm_runtime.batch.lock_step import grouped, in_lock_step

        saved = self._plan.request.saved_segments
        for group in grouped(segments, self._plan.request.parallel_segments):
            new = [(i, segment) for i, segment in group if saved is None or saved.get(i) is None]
            if len(new) > 1:
                calls = [partial(self._gathered, i, segment) for i, segment in new]
                spoken = in_lock_step(self._driver, calls, self._plan.cancel)
                self.known |= zip((i for i, _ in new), spoken, strict=True)
            yield from (segment for _, segment in group)

    def _gathered(self, index: int, segment: PlannedSegment, driver: Driver) -> Iterator[Piece]:
        """The pieces of a segment, which raise its error, or that it was cancelled, when they are read."""
        pieces: list[Piece] = []
        try:
            pieces.extend(self.pieces(index, segment, None, driver))
        except VoxCPMError as error:
            return itertools.chain(pieces, _raising(error))
        return iter(pieces)

    @system_errors_as(InputError)
    def pieces(
        self, index: int, segment: PlannedSegment, held: _HeldPieces | None, driver: Driver | None = None
    ) -> Generator[Piece, None, None]:
        """The pieces of a segment; without `held` it may be retried."""
        plan, driver, voice = self._plan, driver or self._driver, segment.voice or self._voice
        letters = _spoken_letters(segment.voice, plan.bundle) if segment.voice else self._letters or 0
        utterance = prepared(plan, index, segment, voice, prompt_letters=letters, left=self.left)
        start = prefilled(plan, driver, utterance, None if voice is None else self._prefix(voice))
        if held is None:
            return attempts(plan, driver, utterance, start)
        return attempt(plan, driver, utterance, start, held=held.__len__)

    def heard(self, segment: PlannedSegment, spoken: SpokenSegment) -> None:
        """Count a segment, which may become part of the voice."""
        if self.left is not None:
            self.left -= len(spoken.latents)
        if segment.anchors:
            voice = self._voice or Voice(VoiceHeader.of(self._plan.bundle.architecture, name=""))
            self._voice = voice.extended(segment.transcript, spoken.latents)
            is_sound = self._letters is not None and not spoken.reason
            self._letters = (self._letters or 0) + segment.letters if is_sound else None


def _raising(error: VoxCPMError) -> Iterator[Piece]:
    yield from ()
    raise error


class _HeldPieces(deque[Piece]):
    """The pieces of a stream that are held back for a while, so that they can still be repaired.

    The first chunk is held back until it is whole. After the first patches every second one is held back, until there
    are as many as a repair takes, and so are those of later segments at once: speech at a real-time factor of up to 0.7
    plays on.
    """

    def __init__(self, plan: Plan, first: int) -> None:
        super().__init__()
        self._maximum = _MAX_HELD if plan.follows_text else 0
        self._first, self._plays = first, False

    def hand_out(self, piece: Piece) -> Iterator[Piece]:
        """Add a piece, and yield those to hand out."""
        if piece.latents is None:
            while self and self[-1].patches > piece.patches:
                self.pop()
            return
        self.append(piece)
        begins = self._plays or piece.patches < self._first
        keep = min(piece.patches if begins else max(piece.patches - _AT_ONCE, 0) // 2, self._maximum)
        self._plays = self._plays or piece.last
        while len(self) > (0 if piece.last else keep):
            yield self.popleft()


def _spoken_letters(voice: Voice, bundle: Bundle) -> int:
    """Number of letters spoken in a voice's prompt, without the controls that its turns may begin with."""
    spoken = without_control if bundle.architecture.traits.takes_reference else str
    transcript = "".join(spoken(turn.text) for turn in voice.header.turns)
    return count_letters(spelled_transcript(transcript, bundle.tokenizer))


def checked_chunking(chunk_patches: object, first_chunk_patches: object) -> tuple[int, int]:
    """Patches of the first chunk (by default as in the others) and of the others. Raises InputError."""
    others = whole_number(chunk_patches, "chunk_patches", 1, "patches")
    first = others if first_chunk_patches is None else first_chunk_patches
    return whole_number(first, "first_chunk_patches", 1, "patches"), others


def chunked(pieces: Iterable[Piece], first: int, others: int) -> Iterator[Audio]:
    """Yield the audio in chunks (samples,) of `first` and then `others` patches; a piece of a pause ends a chunk."""
    size = first
    gathered: list[Audio] = []
    patches = 0
    for piece in pieces:
        gathered.append(piece.audio)
        patches += piece.latents is not None
        # At another speed the first patch may give no samples yet.
        if (patches >= size or piece.latents is None) and any(map(len, gathered)):
            yield np.concatenate(gathered)
            gathered, patches, size = [], 0, others if patches else size
    if any(map(len, gathered)):
        yield np.concatenate(gathered)
