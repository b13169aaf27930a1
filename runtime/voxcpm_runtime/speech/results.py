"""What a call gives: pieces while it speaks, the whole speech at its end, and a warning about a bad one."""

from __future__ import annotations

from dataclasses import dataclass

from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.model.sequence import Latents


@dataclass(frozen=True)
class Piece:
    """What is heard next: a patch, or a pause between paragraphs."""

    audio: Audio
    """(samples,) in [-1, 1]"""
    segment: int
    """Which segment it is of, or comes before, from 0."""
    patches: int = 0
    """Patches of this segment so far; 0 for a pause."""
    latents: Latents | None = None
    """The patch (frames, latent_dim); None for a pause."""
    attempt: int = 1
    """Which attempt at the segment it is of, from 1: a later one begins the segment again."""
    began: float = 0.0
    """When that attempt began, by `time.perf_counter`."""
    stops: bool = False
    """Whether the stop head ended the segment with this patch."""
    too_long: bool = False
    """Whether the segment is suspiciously long for its text by now."""


@dataclass(frozen=True)
class SpokenSegment:
    """One segment of a speech; a text that is not long is one segment."""

    text: str
    audio: Audio
    """(samples,) in [-1, 1]"""
    latents: Latents
    """Generated patches (patches, frames, latent_dim)."""
    seed: int | None
    """The seed that made it, the last attempt's; None with an `rng` of the caller's."""
    attempts: int
    """How many it took, the last one included."""
    stopped: bool
    """Whether the stop head ended it; else its length was at a limit, or it was cancelled."""
    too_long: bool
    """Whether the last attempt, too, is suspiciously long for its text; always False without `retry_badcase`."""
    ends_paragraph: bool = False
    """Whether a blank line follows in the text."""


@dataclass(frozen=True)
class Speech:
    """What `speak` gives: the audio, and how it came about."""

    audio: Audio
    """(samples,) in [-1, 1]"""
    sample_rate: int
    """Hz"""
    latents: Latents
    """Generated patches of all segments (patches, frames, latent_dim)."""
    seed: int | None
    """The seed that makes this audio again; None with an `rng` of the caller's."""
    attempts: int
    """The most attempts that a segment took."""
    stopped: bool
    """Whether the stop head ended every segment; else a length was at a limit."""
    too_long: bool
    """Whether the last attempt, too, of some segment is suspiciously long for its text."""
    elapsed_seconds: float
    """Seconds of work, all attempts included."""
    segments: tuple[SpokenSegment, ...] = ()
    """What was spoken, segment by segment."""
    cancelled: bool = False
    """Whether it was cut short, and is what had been spoken until then."""

    @property
    def audio_seconds(self) -> float:
        """Seconds of speech."""
        return len(self.audio) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of speech."""
        return self.elapsed_seconds / self.audio_seconds if len(self.audio) else float("inf")


class TooLongWarning(UserWarning):
    """Speech of `retry_badcase_ratio_threshold` patches a text token or more: repetition, or noise without an end."""
