"""Gathering the pieces of a speech: segments, which may be saved, the times of their words, progress, the whole."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from voxcpm_constants.errors import InputError, system_errors_as, warn
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.model.sequence import Latents
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.results import (
    Piece,
    PlannedSegment,
    Progress,
    Speech,
    SpokenSegment,
    WordsWarning,
)
from voxcpm_runtime.speech.seeds import seed_of
from voxcpm_runtime.words.attention import letter_times


class SpeechBuilder:
    """Collects the speech of a plan: everything for a `Speech`, or without audio if it is only streamed."""

    def __init__(self, plan: Plan, *, whole: bool = True) -> None:
        self._plan = plan
        self._whole = whole
        self._rate = plan.bundle.architecture.output_sample_rate
        saves = plan.request.saved_segments is not None and whole and not plan.is_one_segment
        self._store = plan.request.saved_segments if saves else None
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
        progress, text = self._plan.request.progress, self._plan.text
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
            seed=spoken[0].seed if plan.is_one_segment and spoken else plan.seed,
            attempts=max((segment.attempts for segment in spoken), default=0),
            stopped=self._complete and not self.cancelled and all(segment.stopped for segment in spoken),
            elapsed_seconds=time.perf_counter() - self._began,
            segments=tuple(spoken),
            cancelled=self.cancelled,
        )

    def _append(self, planned: PlannedSegment, spoken: SpokenSegment) -> None:
        if self._plan.request.on_words is not None:
            self._plan.request.on_words(spoken.words)
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
            seed=seed_of(self._plan.seed, index, last.attempt - 1),
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
            place=max((self._plan.text or "").find(planned.text, self._characters), 0),
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
        return letter_times(planned.said, places, np.stack(rows), shifts, patch, audio, rate).tolist()
