"""The results of a call: pieces while it speaks, the whole speech at the end, and a warning about a bad one."""

from __future__ import annotations

from dataclasses import dataclass

from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.model.sequence import Latents


@dataclass(frozen=True)
class Piece:
    """A piece of speech: one patch, a pause between paragraphs, or word that a segment begins again."""

    audio: Audio
    """(samples,) in [-1, 1]"""
    segment: int
    """Index of the segment that it belongs to, from 0; a pause belongs to the segment after it."""
    patches: int = 0
    """Patches of this segment so far; 0 if it is no patch."""
    latents: Latents | None = None
    """The patch (frames, latent_dim); None if it is no patch."""
    attempt: int = 1
    """Number of the attempt at the segment, from 1; a later attempt begins the segment again."""
    began: float = 0.0
    """When that attempt began, by `time.perf_counter`."""
    stops: bool = False
    """Whether the stop head ended the segment with this patch."""
    too_long: bool = False
    """Whether the segment is suspiciously long for its text by now."""


@dataclass(frozen=True)
class SpokenSegment:
    """One segment of a speech; a short text is one segment."""

    text: str
    audio: Audio
    """(samples,) in [-1, 1]"""
    latents: Latents
    """Generated patches (patches, frames, latent_dim)."""
    seed: int | None
    """The seed of the last attempt, which made this audio; None if the caller gave an `rng`."""
    attempts: int
    """Number of attempts, the last one included."""
    stopped: bool
    """Whether the stop head ended the segment; otherwise it reached a limit of length, or was cancelled."""
    too_long: bool
    """Whether even the last attempt is suspiciously long for its text; always False without `retry_badcase`."""
    ends_paragraph: bool = False
    """Whether a blank line follows in the text."""


@dataclass(frozen=True)
class Speech:
    """The result of `speak`: the audio, and how it was made."""

    audio: Audio
    """(samples,) in [-1, 1]"""
    sample_rate: int
    """Hz"""
    latents: Latents
    """Generated patches of all segments (patches, frames, latent_dim)."""
    seed: int | None
    """The seed that reproduces this audio; None if the caller gave an `rng`."""
    attempts: int
    """Largest number of attempts at a segment."""
    stopped: bool
    """Whether the stop head ended every segment; otherwise one reached a limit of length, or was cancelled."""
    too_long: bool
    """Whether even the last attempt at some segment is suspiciously long for its text."""
    elapsed_seconds: float
    """Seconds of work, all attempts included."""
    segments: tuple[SpokenSegment, ...] = ()
    """The spoken segments, in order."""
    cancelled: bool = False
    """Whether it was cancelled; then it is what had been spoken until then."""

    @property
    def audio_seconds(self) -> float:
        """Seconds of speech."""
        return len(self.audio) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of speech."""
        return self.elapsed_seconds / self.audio_seconds if len(self.audio) else float("inf")


class TooLongWarning(UserWarning):
    """Speech of `retry_badcase_ratio_threshold` or more patches for each text token: repetition, or endless noise."""
