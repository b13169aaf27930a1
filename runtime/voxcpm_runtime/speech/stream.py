"""Streaming speech, segment by segment. Whole speech is the stream, gathered.

plan ─► segments ─► attempts at each ─► pieces ─► chunks of audio, or a `Speech`

Limits, pauses, progress, warnings and cancellation are handled here alone, for sessions, batches, jobs and the server.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from voxcpm_constants.errors import InputError, system_errors_as, warn
from voxcpm_runtime.argument_types import whole_number
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.model.driver import Driver, Prefix
from voxcpm_runtime.model.sequence import Latents
from voxcpm_runtime.speech.arguments import Cancelled
from voxcpm_runtime.speech.attempts import attempts
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.results import (
    Piece,
    PlannedSegment,
    Progress,
    Speech,
    SpokenSegment,
    UnspokenWarning,
    WordsWarning,
)
from voxcpm_runtime.speech.room import count_letters
from voxcpm_runtime.speech.utterance import utterance
from voxcpm_runtime.text.control import without_control
from voxcpm_runtime.text.normalization import spelled_transcript
from voxcpm_runtime.voices.voice import Voice, VoiceHeader
from voxcpm_runtime.words.attention import letter_times

DEFAULT_CHUNK_PATCHES = 5
# Patches of a stream that are handed out at once, and then held back: a jump is noticed three patches later, and
# repaired from two before it.
_AT_ONCE, _MAX_HELD = DEFAULT_CHUNK_PATCHES, 5


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
    builder, held = whole or SpeechBuilder(plan, whole=False), _HeldPieces(plan, first)
    # Letters spoken in the voice's prompt; None once it includes a suspicious segment.
    letters: int | None = 0 if voice is None else _spoken_letters(voice, plan.bundle)
    left, index, paused = plan.max_patches, 0, False
    try:
        for segment in segments:
            if segment is None:
                yield Piece(np.zeros(0, np.float32), index)
                continue
            if left == 0:
                warn(
                    f"max_len ({plan.options.max_len} patches) is reached before segment {index + 1}: the rest of the "
                    "text is not spoken",
                    UnspokenWarning,
                )
                break
            if paused or segment.before is not None:
                yield from builder.pause(index, segment, plan.pause_before(segment))
            spoken = builder.saved(index, segment)
            if spoken is None:
                with system_errors_as(InputError):
                    speaker = segment.voice or voice
                    known_prefix = None if speaker is None else prefix(speaker)
                    own = _spoken_letters(segment.voice, plan.bundle) if segment.voice else letters or 0
                    current = utterance(plan, index, segment, speaker, prompt_letters=own, left=left)
                for piece in attempts(
                    plan, driver, current, known_prefix, held=None if whole else held.__len__
                ):
                    builder.add(piece)
                    last = piece.stops or piece.patches == current.limit
                    if whole is None and last:
                        spoken = builder.finish(index, segment)
                        piece = replace(piece, spoken=spoken)  # noqa: PLW2901 - the last one
                    yield from held.hand_out(piece, last=last)
                spoken = spoken or builder.finish(index, segment)
            if segment.anchors:
                voice = voice or Voice(VoiceHeader.of(plan.bundle.architecture, name=""))
                voice = voice.extended(segment.transcript, spoken.latents)
                letters = None if spoken.reason or letters is None else letters + segment.letters
            left = None if left is None else left - len(spoken.latents)
            if segment.after:
                yield from builder.pause(index, segment, segment.after)
            index, paused = index + 1, segment.ends_paragraph
    except Cancelled:
        builder.cancelled = True
    if builder.cancelled and not plan.arguments.keep_partial:
        # A new exception: the traceback of the first one keeps the KV caches alive.
        plan.cancel.check()


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

    def hand_out(self, piece: Piece, *, last: bool) -> Iterator[Piece]:
        """Add a piece, and yield those to hand out. last: whether the segment ends with this one."""
        if piece.latents is None:
            while self and self[-1].patches > piece.patches:
                self.pop()
            return
        self.append(piece)
        begins = self._plays or piece.patches < self._first
        keep = min(piece.patches if begins else max(piece.patches - _AT_ONCE, 0) // 2, self._maximum)
        self._plays = self._plays or last
        while len(self) > (0 if last else keep):
            yield self.popleft()


def _spoken_letters(voice: Voice, bundle: Bundle) -> int:
    """Number of letters spoken in a voice's prompt, without the controls that its turns may begin with."""
    spoken = without_control if bundle.architecture.traits.takes_reference else str
    transcript = "".join(spoken(turn.text) for turn in voice.header.turns)
    return count_letters(spelled_transcript(transcript, bundle.tokenizer))


class SpeechBuilder:
    """Collects the speech of a plan: everything for a `Speech`, or without audio if it is only streamed."""

    def __init__(self, plan: Plan, *, whole: bool = True) -> None:
        self._plan = plan
        self._whole = whole
        self._is_one_segment = plan.is_read and len(plan.opening) == 1
        self._rate = plan.bundle.architecture.output_sample_rate
        self._store = None if self._is_one_segment or not whole else plan.arguments.saved_segments
        self._segments: list[SpokenSegment] = []
        self._silences: dict[int, int] = {}  # Samples of silence, by the number of segments before it
        # The patches of the current attempt at the current segment.
        self._pieces: list[Piece] = []
        self._complete = False  # Whether the last segment is spoken
        self.cancelled = False  # Whether the stream was cancelled
        # For the progress.
        self._began = time.perf_counter()
        self._patches = 0  # Patches of the segments before this one
        self._samples = 0  # Samples before the next segment
        self._characters = plan.text_start  # Characters of the text before it, or fewer
        self._finished_characters, self._finished_at = 0, 0.0

    def saved(self, index: int, planned: PlannedSegment) -> SpokenSegment | None:
        """The segment as saved by an earlier run; None without one."""
        spoken = None if self._store is None else self._store.get(index)
        # The same arguments may give another text: a lexicon may have changed on disk.
        if spoken is None or spoken.text != planned.text:
            return None
        spoken = replace(spoken, start=self._samples / spoken.sample_rate if spoken.sample_rate else 0.0)
        self._append(planned, spoken)
        return spoken

    def pause(self, index: int, planned: PlannedSegment, seconds: float) -> Iterator[Piece]:
        """Count silence before or after the segment of that index, and yield it in pieces of at most a second."""
        left, rate = round(seconds * self._rate), self._rate
        while left:
            count = min(left, rate)
            left -= count
            self._samples += count
            self._silences[len(self._segments)] = self._silences.get(len(self._segments), 0) + count
            piece = Piece(np.zeros(count, np.float32), index, planned=planned)
            self._report(piece)
            yield piece

    def add(self, piece: Piece) -> None:
        """Add a patch, or drop those after which the segment is spoken again."""
        if piece.latents is None:
            del self._pieces[piece.patches :]
            return
        self._pieces.append(piece)
        self._report(piece)

    def _report(self, piece: Piece) -> None:
        progress, text = self._plan.arguments.progress, self._plan.arguments.text
        if progress is None or text is None:  # A session has no end, so there is no progress to report.
            return
        worked, remaining = time.perf_counter() - self._began, None
        if self._finished_characters:
            remaining = max(0.0, self._finished_at / self._finished_characters * len(text) - worked)
        progress(
            Progress(
                patches=piece.patches,
                audio_seconds=(self._patches + piece.patches) * self._plan.bundle.architecture.patch_seconds
                + sum(self._silences.values()) / self._rate,
                elapsed_seconds=worked,
                attempt=piece.attempt,
                segment=piece.segment,
                segments=len(self._plan.opening) if self._plan.is_read else None,
                remaining_seconds=remaining,
                segment_tokens=piece.planned.target_tokens if piece.planned else 0,
                replaced=piece.planned.replaced if piece.planned else "",
            )
        )

    def finish(self, index: int, planned: PlannedSegment) -> SpokenSegment:
        """Join, save and return the complete segment. Warns of words that it lacks or repeats."""
        spoken = self._join(index, planned)
        if missed := spoken.unsaid + spoken.repeated:
            warn(WordsWarning(index + 1, missed))
        if self._store is not None:
            self._store.put(index, spoken)
        self._append(planned, spoken)
        return spoken

    @system_errors_as(InputError)
    def speech(self) -> Speech:
        """The speech; if it was cancelled, the complete segments and the beginning of the next."""
        plan, spoken = self._plan, list(self._segments)
        if self._pieces and self._pieces[0].planned is not None:
            spoken.append(self._join(len(spoken), self._pieces[0].planned))
        a = plan.bundle.architecture
        latents = [np.zeros((0, a.patch_size, a.feat_dim), np.float32), *(one.latents for one in spoken)]
        if self.cancelled:
            self._silences.pop(len(spoken), None)
        samples = sum(self._silences.values()) + sum(len(one.audio) for one in spoken)
        # The system gives memory only to what is written: the speech.
        audio, at = np.zeros(samples, np.float32), 0
        for index, segment in enumerate(spoken):
            at += self._silences.get(index, 0)
            audio[at : at + len(segment.audio)] = segment.audio
            at += len(segment.audio)
        return Speech(
            audio=audio,
            sample_rate=a.output_sample_rate,
            latents=np.concatenate(latents),
            seed=spoken[0].seed if self._is_one_segment and spoken else plan.seed,
            attempts=max((segment.attempts for segment in spoken), default=0),
            stopped=self._complete and not self.cancelled and all(segment.stopped for segment in spoken),
            elapsed_seconds=time.perf_counter() - self._began,
            segments=tuple(spoken),
            cancelled=self.cancelled,
        )

    def _append(self, planned: PlannedSegment, spoken: SpokenSegment) -> None:
        if self._plan.arguments.on_words is not None:
            self._plan.arguments.on_words(spoken.words)
        if self._whole:
            self._segments.append(spoken)
        self._patches += len(spoken.latents)
        self._samples += len(spoken.audio)
        self._characters = spoken.place + len(spoken.text)
        self._complete = planned.followed is False
        self._pieces.clear()
        self._finished_characters += len(planned.text)
        self._finished_at = time.perf_counter() - self._began

    @system_errors_as(InputError)
    def _join(self, index: int, planned: PlannedSegment) -> SpokenSegment:
        last = self._pieces[-1]
        latents: list[Latents] = [piece.latents for piece in self._pieces if piece.latents is not None]
        audio = np.concatenate([piece.audio for piece in self._pieces])
        return SpokenSegment(
            text=planned.text,
            audio=audio,
            latents=np.stack(latents),
            seed=self._plan.seed_of(index, last.attempt - 1),
            attempts=last.attempts,
            stopped=last.stops,
            reason=last.reason,
            expected_seconds=last.expected_seconds,
            ends_paragraph=planned.ends_paragraph,
            letter_times=self._letter_times(planned, audio),
            said=planned.said,
            sample_rate=self._rate,
            start=self._samples / self._rate,
            said_counts=list(last.said_counts),
            place=max((self._plan.arguments.text or "").find(planned.text, self._characters), 0),
            replaced=planned.replaced,
        )

    def _letter_times(self, planned: PlannedSegment, audio: Audio) -> list[float]:
        """`SpokenSegment.letter_times`."""
        rows = [piece.attention for piece in self._pieces if piece.attention is not None]
        if not rows:
            return []
        bundle, speed, rate = self._plan.bundle, planned.speed, self._rate
        places = [place for _, place in bundle.tokenizer.placed(planned.said)]
        shifts = [head.shift / speed for head in bundle.manifest.sizes.alignment]
        patch = bundle.architecture.patch_seconds / speed
        times: list[float] = letter_times(
            planned.said, places, np.stack(rows), shifts, patch, audio, rate
        ).tolist()
        return times


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
