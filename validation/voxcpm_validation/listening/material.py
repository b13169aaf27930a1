"""Material of the listening test: sentences that no voice was trained on, and prompts of four voices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import NamedTuple

import soundfile
from pydantic import BaseModel, ConfigDict

from voxcpm_runtime.backends.step_function import Floats

_MATERIAL = files("voxcpm_validation") / "listening_test"


class PromptVoice(BaseModel):
    """A prompt, and the time that its speaker takes for each sentence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    audio: str
    """File name of the prompt."""
    transcript: str
    natural_seconds: tuple[float, ...]
    """Duration of each sentence as the speaker says it."""
    continued: bool
    """Whether the prompt is continued; otherwise the voice is only compared with the clones of others."""


class Clip(NamedTuple):
    """Audio (samples,), and its sample rate in Hz."""

    audio: Floats
    sample_rate: int


@dataclass(frozen=True)
class Material:
    """The sentences and voices of a test."""

    sentences: Sequence[str]
    voices: Sequence[PromptVoice]


def material(count: int | None = None) -> Material:
    """The first `count` sentences, or all, and the voices of the test."""
    lines = (_MATERIAL / "sentences.txt").read_text(encoding="utf-8").split("\n")
    voices = json.loads((_MATERIAL / "voices.json").read_text(encoding="utf-8"))
    return Material([line for line in lines if line][:count], [PromptVoice(**voice) for voice in voices])


def prompt_clip(voice: PromptVoice) -> Clip:
    """The prompt's audio."""
    with as_file(_MATERIAL / voice.audio) as path:
        audio, rate = soundfile.read(path, dtype="float32")
    return Clip(audio, rate)
