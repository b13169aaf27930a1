"""Material of the listening test: texts that no voice was trained on, and prompts of several voices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import NamedTuple

import soundfile
from pydantic import BaseModel, ConfigDict

from voxcpm_runtime.backends.step_function import Floats
from voxcpm_runtime.text.sentences import sentences

_MATERIAL = files("voxcpm_validation") / "listening_test"
PROSE_KINDS = ("licence", "story", "article")
"""Names of the texts of prose."""


class PromptVoice(BaseModel):
    """A prompt, and the time that its speaker takes for each sentence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    audio: str
    """File name of the prompt."""
    transcript: str
    natural_seconds: tuple[float, ...] = ()
    """Duration of each sentence as the speaker says it; empty if the speaker was not asked."""
    continued: bool
    """Whether the prompt is continued; otherwise the voice is only compared with the clones of others."""
    unheard: bool = False
    """Whether the built-in voice was trained without this speaker."""


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
    voices = json.loads((_MATERIAL / "voices.json").read_text(encoding="utf-8"))
    return Material(_lines("sentences.txt")[:count], [PromptVoice(**voice) for voice in voices])


def prose(words: int | None = None) -> dict[str, str]:
    """The text of each kind of prose: all, or its first sentences until they have `words` words."""
    return {kind: first_words(_text(kind), words) for kind in PROSE_KINDS}


def narration() -> str:
    """A story of more than half an hour."""
    return _text("narration")


def short_texts() -> list[str]:
    """Texts of one or two words."""
    return _lines("prose/short_words.txt")


def first_words(text: str, words: int | None) -> str:
    """The text's first sentences until they have `words` words; the whole text for None."""
    kept, count = "", 0
    for sentence in sentences(text):
        if words is not None and count >= words:
            break
        kept, count = kept + sentence.text, count + len(sentence.text.split())
    return kept.strip()


def prompt_clip(voice: PromptVoice) -> Clip:
    """The prompt's audio."""
    with as_file(_MATERIAL / voice.audio) as path:
        audio, rate = soundfile.read(path, dtype="float32")
    return Clip(audio, rate)


def _text(name: str) -> str:
    # A line of the file is a paragraph; the runtime's paragraphs have a blank line between them.
    return "\n\n".join(_lines(f"prose/{name}.txt"))


def _lines(path: str) -> list[str]:
    return [line for line in (_MATERIAL / path).read_text(encoding="utf-8").split("\n") if line]
