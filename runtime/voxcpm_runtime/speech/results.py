"""What comes of a call: the speech, and what is said of a bad one."""

from __future__ import annotations

from dataclasses import dataclass

from voxcpm_runtime.audio.files import Audio
from voxcpm_runtime.model.sequence import Latents


@dataclass(frozen=True)
class SpokenSegment:
    """One utterance of a speech; a text that is not long is one."""

    text: str
    audio: Audio
    """(samples,) in [-1, 1]"""
    latents: Latents
    """Generated patches (patches, frames, latent_dim)."""
    seed: int | None
    """The seed that made it, the last attempt's; None with an `rng` of the caller's."""
    attempts: int
    stopped: bool
    """Whether the stop head ended it; else its length was at a limit, or it was cancelled."""
    too_long: bool
    """Whether the last attempt, too, is suspiciously long for its text; always False without `retry_badcase`."""
    ends_paragraph: bool = False


@dataclass(frozen=True)
class Speech:
    """What `speak` gives: the audio, and how it came about."""

    audio: Audio
    """(samples,) in [-1, 1]"""
    sample_rate: int
    latents: Latents
    """Generated patches of all segments (patches, frames, latent_dim)."""
    seed: int | None
    """The seed that makes this audio again; None with an `rng` of the caller's."""
    attempts: int
    """Most that a segment took."""
    stopped: bool
    """Whether the stop head ended every segment; else a length was at a limit."""
    too_long: bool
    """Whether the last attempt, too, of some segment is suspiciously long for its text."""
    elapsed_seconds: float
    segments: tuple[SpokenSegment, ...] = ()
    cancelled: bool = False
    """Whether it was cut short, and is what had been spoken until then."""

    @property
    def audio_seconds(self) -> float:
        return len(self.audio) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of speech."""
        return self.elapsed_seconds / self.audio_seconds if len(self.audio) else float("inf")


class TooLongWarning(UserWarning):
    """Speech of `retry_badcase_ratio_threshold` patches a text token or more: repetition, or noise without an end."""
