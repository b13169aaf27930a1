"""The data of plans, streams and speech: segments, pieces, progress, the whole speech, and warnings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from voxcpm_constants.errors import VoxCPMWarning
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.backends.step_function import Floats
from voxcpm_runtime.model.sequence import Latents
from voxcpm_runtime.voices.voice import Voice
from voxcpm_runtime.words.coverage import word_counts
from voxcpm_runtime.words.pauses import letter_times
from voxcpm_runtime.words.words import Method, Word, word_times

Reason = Literal["", "long", "short", "cut"]
"""Why speech is suspicious: too long or too short for its text, or cut off by the KV cache; otherwise empty."""

_MAX_LISTED = 5  # Words in a warning


@dataclass(frozen=True)
class PlannedSegment:
    """One segment of the speech, tokenised. A short text is one segment."""

    text: str  # The segment as the caller wrote it
    said: str  # The same as it is said, without a control
    transcript: str
    """The prompt's transcript for a segment that continues this one: normalized, but not spelled."""
    tokens: list[int]  # Tokens of the prompt's transcript and of the text, tokenised together
    transcript_tokens: list[int]
    """Tokens of the prompt's transcript alone; the last one may differ in `tokens`, where the text follows."""
    target_tokens: int  # Number of tokens of the text alone
    letters: int  # Letters and digits of the text alone, for its expected duration
    ends_paragraph: bool  # Whether a blank line follows
    speed: float = 1.0  # How many times faster it is played
    voice: Voice | None = None  # The voice of this segment alone; None for that of the plan
    before: float | None = None
    """Seconds of silence before it; None for the usual pause if a paragraph ends there."""
    after: float = 0.0  # Seconds of silence after it, at the end of the text
    anchors: bool = False  # Whether its speech becomes part of the voice of later segments
    followed: bool | None = None  # Whether another segment follows; None if unknown, as in a session
    replaced: str = ""  # Characters that the voice cannot say, each once: transliterated or left out


@dataclass(frozen=True)
class Piece:
    """A piece of speech: one patch, up to a second of a pause, or a signal that a segment starts over."""

    audio: Audio  # (samples,) in [-1, 1]
    segment: int  # Index of its segment, from 0; a pause belongs to the next segment
    patches: int = 0  # Patches of this segment so far; 0 for a pause
    latents: Latents | None = None  # The patch (frames, latent_dim); None for other pieces
    attempt: int = 1  # Number of the attempt at the segment, from 1; each starts the segment over
    attempts: int = 1  # Number of attempts so far; more than `attempt` if an earlier one was best
    stops: bool = False  # Whether the stop head ended the segment with this patch
    last: bool = False  # Whether the segment ends with this patch, by the stop head or a limit
    reason: Reason = ""  # What is suspicious about the segment so far
    expected_seconds: float | None = None  # Expected seconds as played; None without a `speech.json`
    planned: PlannedSegment | None = None  # The segment; None for the signal
    attention: Floats | None = None
    """To the text's tokens in the alignment heads (heads, tokens), as in `Patch`."""
    said_counts: Sequence[int] = ()  # With the last patch, as in `SpokenSegment`
    spoken: SpokenSegment | None = None
    """The whole segment, with the times of its words: with its last patch in a stream, otherwise None."""


@dataclass(frozen=True)
class Progress:
    """The progress of a call. A short text is one segment."""

    patches: int  # Patches so far in this attempt at this segment
    audio_seconds: float  # Seconds so far: pauses, and the speech of all segments, without their `speed`
    elapsed_seconds: float  # Seconds of work, all attempts included
    attempt: int  # Number of this attempt, from 1
    segment: int = 0  # Index of the current segment, from 0
    segments: int | None = 1  # Number of segments; None for a long text, which is read lazily
    remaining_seconds: float | None = None  # Estimated seconds of work left; None during the first segment
    segment_tokens: int = 0  # Number of text tokens of the current segment
    replaced: str = ""  # Characters of the current segment that the voice cannot say, each once

    @property
    def real_time_factor(self) -> float:
        """Seconds of work per second of speech; below 1 is faster than real time."""
        return self.elapsed_seconds / self.audio_seconds


ProgressCallback = Callable[[Progress], None]


class _Missed:
    """What both a segment and a speech tell about their words, by the model's attention: nothing without it."""

    @property
    def unsaid(self) -> tuple[Word, ...]:
        """The words that the speech lacks."""
        return tuple(word for word in self.words if not word.said)  # type: ignore[attr-defined]

    @property
    def repeated(self) -> tuple[Word, ...]:
        """The words that are said more often than they are written."""
        return tuple(word for word in self.words if word.said > 1)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class SpokenSegment(_Missed):
    """One segment of a speech; a short text is one segment."""

    text: str
    audio: Audio = field(repr=False)  # (samples,) in [-1, 1]
    latents: Latents = field(repr=False)  # Generated patches (patches, frames, latent_dim)
    seed: int | None  # The seed that generated this audio; None if the caller passed an `rng`
    attempts: int  # Number of attempts
    stopped: bool
    """Whether the stop head ended the segment; otherwise it reached a length limit or was cancelled."""
    reason: Reason = ""
    """What is suspicious even about the best attempt. Without `retry_badcase` lengths are not checked."""
    expected_seconds: float | None = None  # Expected seconds; None without a `speech.json`
    ends_paragraph: bool = False  # Whether a blank line follows in the text
    letter_times: Sequence[float] = field(default=(), repr=False)
    """When each character of `said` begins, and the last one ends, by the model's attention; empty without it."""
    said: str = ""  # The text as it is said
    sample_rate: int = 0  # Hz
    start: float = 0.0  # Seconds of the speech before it, pauses included
    said_counts: Sequence[int] = field(default=(), repr=False)
    """How many times each character of `said` is said, by the model's attention; empty without it."""
    place: int = 0
    """Index of its first character in the text of the speech, or in all that a session was given."""
    replaced: str = ""  # Characters that the voice cannot say, each once: transliterated or left out

    @cached_property
    def words(self) -> tuple[Word, ...]:
        """The words of the text, with their times in the whole speech.

        If a limit or `cancel` ended the segment, and there is no attention to tell its last word, only those that fit.
        """
        if not self.said:
            return ()
        seconds, count = len(self.audio) / self.sample_rate, len(self.said)
        is_cut = not self.stopped and not self.said_counts and self.expected_seconds
        reached = round(count * min(1.0, seconds / self.expected_seconds)) if is_cut else count  # type: ignore[operator]
        method: Method = "attention" if self.letter_times else "pauses"
        times = self.letter_times or [
            *letter_times(self.said[:reached], self.audio, self.sample_rate),
            *[seconds] * (count - reached),
        ]
        timed = word_times(self.text, self.said, times, start=self.start, method=method)
        said_counts = self.said_counts or [1] * reached + [0] * (count - reached)
        counts = word_counts(self.text, self.said, said_counts)
        placed = (
            word._replace(place=self.place + word.place, said=n)
            for word, n in zip(timed, counts, strict=True)
        )
        return tuple(word for word in placed if word.said or not is_cut)


class SuspiciousSegment(NamedTuple):
    """A segment whose length does not fit its text, in every attempt."""

    number: int  # Number of the segment in the speech, from 1
    reason: Reason  # "long", "short", or "cut" by the KV cache
    seconds: float  # Seconds of speech
    expected_seconds: float | None  # Expected seconds; None without a `speech.json`


@dataclass(frozen=True)
class Speech(_Missed):
    """The result of `speak`: the audio, and how it was made."""

    audio: Audio  # (samples,) in [-1, 1]
    sample_rate: int  # Hz
    latents: Latents  # Generated patches of all segments (patches, frames, latent_dim)
    seed: int | None  # The seed that reproduces this audio; None if the caller passed an `rng`
    attempts: int  # Maximum number of attempts at a segment
    stopped: bool
    """Whether the stop head ended every segment; otherwise a length limit or `cancel` did."""
    elapsed_seconds: float  # Seconds of work, all attempts included
    segments: tuple[SpokenSegment, ...] = ()  # The spoken segments, in order
    cancelled: bool = False  # Whether it was cancelled; then this is the speech up to that point

    def __repr__(self) -> str:
        return (
            f"Speech(audio_seconds={self.audio_seconds:.2f}, sample_rate={self.sample_rate}, "
            f"segments={len(self.segments)}, seed={self.seed}, stopped={self.stopped}, cancelled={self.cancelled}, "
            f"real_time_factor={self.real_time_factor:.2f})"
        )

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of the text as it is written, with their times. They are computed when they are first read."""
        return tuple(word for segment in self.segments for word in segment.words)

    @property
    def replaced(self) -> str:
        """The characters that the voice cannot say, each once: transliterated or left out."""
        return "".join(dict.fromkeys("".join(segment.replaced for segment in self.segments)))

    @property
    def suspicious(self) -> tuple[SuspiciousSegment, ...]:
        """The segments that are suspicious in every attempt."""
        return tuple(
            SuspiciousSegment(
                number, segment.reason, len(segment.audio) / self.sample_rate, segment.expected_seconds
            )
            for number, segment in enumerate(self.segments, start=1)
            if segment.reason
        )

    @property
    def audio_seconds(self) -> float:
        """Seconds of speech."""
        return len(self.audio) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds of work per second of speech; infinite without speech."""
        return self.elapsed_seconds / self.audio_seconds if len(self.audio) else float("inf")


class SuspiciousWarning(VoxCPMWarning):
    """Speech whose length does not fit its text, in every attempt; the message names the segment."""


class TooLongWarning(SuspiciousWarning):
    """Speech that is suspiciously long for its text, such as repetition or endless noise."""


class TooShortWarning(SuspiciousWarning):
    """Speech that is suspiciously short for its text, so that words may be missing."""


class WordsWarning(VoxCPMWarning):
    """Speech that lacks or repeats words, in every attempt. words: these."""

    def __init__(self, number: int, words: Sequence[Word]) -> None:
        listed = ", ".join(
            f"{word.text!r} at {word.place} is {'said again' if word.said else 'not said'}"
            for word in words[:_MAX_LISTED]
        )
        more = ", …" if len(words) > _MAX_LISTED else ""
        super().__init__(f"segment {number}: {listed}{more}; another seed may be better")
        self.words = words


class UnspokenWarning(VoxCPMWarning):
    """Speech that `max_len` ended before all segments of its text were spoken."""
