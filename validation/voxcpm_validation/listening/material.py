"""Material of the listening test: texts that no voice was trained on, and prompts of several voices."""

from __future__ import annotations

import json
from importlib.resources import as_file, files

import soundfile
from pydantic import BaseModel

from voxcpm_runtime.backends.step_function import Floats
from voxcpm_runtime.text.sentences import each_sentence

_MATERIAL = files("voxcpm_validation") / "listening_test"


class PromptVoice(BaseModel, extra="forbid", frozen=True):
    """A prompt, and its speaker's duration of each sentence."""

    name: str
    audio: str
    """File name of the prompt."""
    transcript: str
    natural_seconds: tuple[float, ...] = ()
    """Seconds that the speaker takes for each sentence; empty if unknown."""
    continued: bool
    """Whether the prompt is continued; otherwise clones are only compared with it."""
    unheard: bool = False
    """Whether the built-in voice was trained without this speaker."""


def prompt_voices() -> list[PromptVoice]:
    """The voices of the test."""
    voices = json.loads((_MATERIAL / "voices.json").read_text(encoding="utf-8"))
    return [PromptVoice(**voice) for voice in voices]


def prompt_clip(voice: PromptVoice) -> tuple[Floats, int]:
    """The prompt's audio (samples,) and its sample rate in Hz."""
    with as_file(_MATERIAL / voice.audio) as path:
        audio, rate = soundfile.read(path, dtype="float32")
    return audio, rate


def short_sentences(count: int | None = None) -> list[str]:
    """The first `count` sentences, or all."""
    return _lines("sentences.txt")[:count]


def chinese_sentences(count: int | None = None) -> list[str]:
    """The first `count` Chinese sentences, or all."""
    return _lines("chinese.txt")[:count]


def short_texts() -> list[str]:
    """Texts of one or two words."""
    return _lines("prose/short_words.txt")


def prose(words: int | None = None) -> dict[str, str]:
    """The text of each kind of prose: all, or its first sentences, up to at least `words` words."""
    return {kind: _truncate(_text(kind), words) for kind in ("licence", "story", "article")}


def narration(words: int | None = None) -> str:
    """A story of more than half an hour, or its beginning as in `prose`."""
    return _truncate(_text("narration"), words)


def _truncate(text: str, words: int | None) -> str:
    result, count = "", 0
    for sentence in each_sentence(text):
        if words is not None and count >= words:
            break
        result, count = result + sentence.text, count + len(sentence.text.split())
    return result.strip()


def _text(name: str) -> str:
    # A line of the file is a paragraph; the runtime separates paragraphs by blank lines.
    return "\n\n".join(_lines(f"prose/{name}.txt"))


def _lines(path: str) -> list[str]:
    return [line for line in (_MATERIAL / path).read_text(encoding="utf-8").split("\n") if line]
