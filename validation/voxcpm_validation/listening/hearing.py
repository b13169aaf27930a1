"""Readings of a text, and what a recogniser and a speaker encoder measure in each segment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, Field

from voxcpm_runtime.backends.step_function import Floats
from voxcpm_validation.listening.material import PromptVoice, prompt_clip, prompt_voices
from voxcpm_validation.listening.recognition import Recogniser
from voxcpm_validation.listening.sound_quality import SoundJudge, SoundQuality
from voxcpm_validation.listening.speaker_similarity import SpeakerEncoder

# The end of an utterance counts as cut if its level, relative to the peak, is higher than this.
_CUT_DB = -26.0
_END_SECONDS = 0.03
_FRAME_SECONDS = 0.02
_ACTIVE_DB = -30.0
_SILENCE_DB = -120.0


class ReadSegment(NamedTuple):
    """One utterance of a reading."""

    written: str
    """The segment as written in the text."""
    said: str
    """The segment in the words that the voice got."""
    audio: Floats
    """(samples,)"""
    pause: float = 0.0
    """Seconds of silence after it."""
    attempts: int = 1
    suspicious: bool = False
    """Whether the runtime reports even the last attempt as bad."""


class Reading(NamedTuple):
    """One system's reading of a text."""

    segments: Sequence[ReadSegment]
    sample_rate: int
    """Hz"""


Speak = Callable[[str, "PromptVoice | None", int, "float | None"], Reading]
"""A system under test: (text, voice, seed, seconds) → a reading that continues the voice's prompt, or zero-shot for
None. It stops after the first segment that ends later than `seconds`, if given."""


Copier = Callable[[Floats, int], tuple[Floats, Floats, int]]
"""An AudioVAE under test: (recording (samples,), Hz) → the recording and its copy, both (samples,), and their rate."""


class TranscribedSegment(BaseModel, extra="forbid", frozen=True):
    """One utterance with its transcript and measurements."""

    written: str
    said: str
    heard: str
    seconds: float
    """Seconds of speech, without the pause after it."""
    pause: float
    attempts: int
    suspicious: bool
    ends_abruptly: bool
    """Whether the last 30 ms are not quiet."""
    level: float
    """Level of the speech without its pauses, in dBFS."""
    mos: float
    dnsmos: float
    pitch: float | None
    """Median fundamental frequency in Hz; None if nothing is voiced."""
    comb: float
    flatness: float = 0.0
    sibilance: float = 0.0
    """These six: see `SoundQuality`. Earlier reports lack the last two."""
    embedding: tuple[float, ...] = Field(default=(), exclude=True)
    """Unit-length speaker embedding; empty in a saved report."""

    @property
    def letters(self) -> int:
        """Number of letters and digits said."""
        return sum(char.isalnum() for char in self.said)

    @property
    def words(self) -> int:
        """Number of words said."""
        return len(self.said.split())


class ReadingCase(NamedTuple):
    """Texts that are read in one voice; text i has the test's seed + i."""

    name: str
    voice: PromptVoice | None
    """None for zero-shot."""
    texts: Mapping[str, str]
    """The texts by name."""
    seconds: float | None = None
    """Seconds after which each reading stops; None for the whole text."""
    language: str = "en"
    """The texts' ISO 639-1 code."""


class TranscribedCase(NamedTuple):
    """The transcribed segments of each text of a case."""

    system: str
    case: ReadingCase
    texts: Mapping[str, Sequence[TranscribedSegment]]

    @property
    def segments(self) -> list[TranscribedSegment]:
        """The segments of all texts."""
        return [segment for text in self.texts.values() for segment in text]


@dataclass(frozen=True)
class Listener:
    """A recogniser, a speaker encoder, and the voices of the test with their embeddings."""

    recogniser: Recogniser
    encoder: SpeakerEncoder
    judge: SoundJudge
    voices: Sequence[PromptVoice]
    gallery: Mapping[str, Floats]

    @classmethod
    def of(cls, recogniser: Path | None = None) -> Listener:
        """A listener for the voices of the test. recogniser: see `Recogniser`.

        Raises ModuleNotFoundError without the recogniser's packages, MissingExtraError without the encoder's.
        """
        encoder, voices = SpeakerEncoder(), prompt_voices()
        gallery = {voice.name: encoder.embed(*prompt_clip(voice)) for voice in voices}
        return cls(Recogniser(recogniser), encoder, SoundJudge(), voices, gallery)

    def transcribe(self, reading: Reading, language: str = "en") -> list[TranscribedSegment]:
        """Every segment of a reading, transcribed and measured. language: see `Case`."""
        rate = reading.sample_rate
        return [
            TranscribedSegment(
                **{name: value for name, value in segment._asdict().items() if name != "audio"},
                heard=self.recogniser.transcribe(segment.audio, rate, language),
                seconds=len(segment.audio) / rate,
                ends_abruptly=_ends_abruptly(segment.audio, rate),
                level=speech_level(segment.audio, rate),
                embedding=tuple(map(float, self.encoder.embed(segment.audio, rate))),
                **_figures(self.judge.quality(segment.audio, rate)),
            )
            for segment in reading.segments
        ]


def _figures(quality: SoundQuality) -> dict[str, Any]:
    return {name: None if np.isnan(value) else value for name, value in quality._asdict().items()}


def speech_level(audio: Floats, sample_rate: int) -> float:
    """RMS level in dBFS of the 20 ms frames within 30 dB of the loudest one."""
    size = int(_FRAME_SECONDS * sample_rate)
    frames = audio[: len(audio) // size * size].reshape(-1, size)
    power = np.mean(frames.astype(np.float64) ** 2, axis=1) if len(frames) else np.zeros(1)
    loudest = power.max()
    if loudest <= 0:
        return _SILENCE_DB
    return float(10 * np.log10(power[power >= loudest * 10 ** (_ACTIVE_DB / 10)].mean()))


def _ends_abruptly(audio: Floats, sample_rate: int) -> bool:
    end = audio[-int(_END_SECONDS * sample_rate) :]
    peak = float(np.abs(audio).max()) or 1.0
    return float(np.sqrt(np.mean(end**2))) > peak * 10 ** (_CUT_DB / 20)
