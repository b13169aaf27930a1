"""The speakers of the training speech: voices of Kokoro-82M, on a GPU.

A speaker is a Kokoro voice or a mixture of two or three, with its own pace. Some speak more slowly and are played
faster by the same factor, which raises the pitch and shortens the vocal tract but keeps the duration, or the reverse.
Kokoro also reports the times of phones. Its phonemes are those of hibari's lexicon.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft
import scipy.signal

from voxcpm_training.architecture import HOP, SAMPLE_RATE

FloatArray = npt.NDArray[np.float32]

_SILENCE = 0
_PHONES = "iɪɛæɑʌəɔʊuɜAIOWYptkbdɡfvθðszʃʒhʧʤmnŋlɹjw"
PHONE_IDS = {phone: index + 1 for index, phone in enumerate(_PHONES)}
PHONE_CLASSES = len(_PHONES) + 1
"""Number of classes: silence, and the phones of hibari's alphabet, in which stress and length marks have no class."""
_VARIANTS_OF_PHONES = {
    "ᵊ": "ə", "ɐ": "ə", "ɾ": "t", "ɚ": "ɜ", "T": "t", "ᵻ": "ɪ", "g": "ɡ", "a": "ɑ", "o": "ɔ", "e": "ɛ",
}  # fmt: skip
_MAX_PHONEMES = 508
# Names of letters that are other words in the lexicon.
_READ_AS = {"ay": "ˈA", "ee": "ˈi"}


@dataclass(frozen=True)
class SynthesizedSpeech:
    """Synthesized audio (samples,) at 24 kHz; phone i lasts from ends[i - 1] to ends[i], in seconds."""

    audio: FloatArray
    phones: list[int]
    ends: FloatArray


@dataclass(frozen=True)
class Speaker:
    """One speaker: a mixture of Kokoro's voices, whose recordings are played `pitch` times as fast."""

    voices: tuple[str, ...]
    """The mixed voices."""
    parts: tuple[float, ...] = (1.0,)
    """Each voice's weight in the mixture."""
    pitch: float = 1.0
    speed: float = 1.0
    """The speaker's pace relative to the voice's own."""
    share: float = 1.0
    """Fraction of all utterances; the fractions of all speakers add up to 1."""


# Kokoro's English voices and their shares, by grade. Held out, to be tested as unheard voices: af_nova, am_echo,
# bf_lily, bm_lewis.
_VOICES = {
    "af_heart": 14, "af_bella": 9, "am_michael": 9, "am_fenrir": 9, "bf_emma": 7, "am_puck": 6, "bm_george": 5,
    "af_kore": 5, "af_sarah": 5, "af_aoede": 5, "bf_isabella": 4, "bm_fable": 4, "af_alloy": 3, "af_jessica": 2,
    "af_river": 2, "af_sky": 2, "am_onyx": 2, "am_eric": 2, "am_liam": 2, "bm_daniel": 2, "bf_alice": 1,
}  # fmt: skip
# Shares of single voices, mixtures and pitch-shifted voices, and numbers of the last two.
_SHARES = (0.50, 0.28, 0.22)
_MIXED, _PITCHED = 360, 160


def _speakers() -> tuple[Speaker, ...]:
    rng = np.random.default_rng(13)
    voices, shares = tuple(_VOICES), np.array(list(_VOICES.values())) / sum(_VOICES.values())

    def pitch() -> float:
        return round(float(np.exp(rng.uniform(-0.24, 0.14))), 3)

    found: list[tuple[tuple[str, ...], tuple[float, ...], float, float]]
    found = [((voice,), (1.0,), 1.0, _SHARES[0] * share) for voice, share in zip(voices, shares, strict=True)]
    for number in range(_MIXED):
        mixed = rng.choice(len(voices), 2 + number % 2, replace=False, p=shares)
        parts = tuple(round(float(part), 3) for part in rng.dirichlet(np.full(len(mixed), 2.0)))
        names = tuple(voices[i] for i in mixed)
        found.append((names, parts, pitch() if number % 3 == 0 else 1.0, _SHARES[1] / _MIXED))
    for number in range(_PITCHED):
        voice = voices[number % len(voices)]
        found.append(((voice,), (1.0,), pitch(), _SHARES[2] / _PITCHED))
    return tuple(
        Speaker(names, parts, pitch, round(float(rng.uniform(0.94, 1.1)), 3), share)
        for names, parts, pitch, share in found
    )


SPEAKERS = _speakers()


@dataclass(frozen=True)
class Utterance:
    """Phonemes for a speaker, at `pace` times the speaker's own pace."""

    phonemes: str
    speaker: Speaker
    pace: float


@cache
def _g2p() -> Any:
    # Before ONNX Runtime, which hibari imports.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    from hibari.g2p import G2P  # type: ignore[import-untyped]

    return G2P(british=False)


@cache
def vocabulary() -> dict[str, int]:
    """Kokoro's phoneme ids, from hibari."""
    path = resources.files("hibari").joinpath("assets/vocab.json")
    return json.loads(path.read_text(encoding="utf-8"))


def phonemes(text: str) -> str:
    """The phonemes of a text, truncated to Kokoro's maximum."""
    marked = re.sub(r"\b(ay|ee)\b", lambda word: f"[{word[0]}](/{_READ_AS[word[0]]}/)", text)
    return "".join(p for p in str(_g2p()(marked)) if p in vocabulary() and p not in '"“”')[:_MAX_PHONEMES]


def _phone_id(character: str) -> int:
    """Class of a phoneme: -1 for stress and length marks, silence for punctuation and spaces."""
    if character in "ˈˌː":
        return -1
    return PHONE_IDS.get(_VARIANTS_OF_PHONES.get(character, character), _SILENCE)


class KokoroVoices:
    """Kokoro with all its voices on one device. folder: the export's parts part-1.bin … and the voices' .bin files."""

    def __init__(self, folder: Path, device: str) -> None:
        import torch

        from voxcpm_training.kokoro import Kokoro

        torch.set_num_threads(1)
        self._model = Kokoro(path.read_bytes() for path in sorted(folder.glob("part-*.bin"))).to(device)
        # (510, 256) per voice: a row per number of phonemes, from 1.
        self._styles = {
            path.stem: np.fromfile(path, "<f4").reshape(-1, 256) for path in folder.glob("??_*.bin")
        }

    def speak(self, utterances: Sequence[Utterance], seed: int) -> list[SynthesizedSpeech]:
        """Speech of the utterances, in order. seed: that of the noise in the signals."""
        import torch

        from voxcpm_training.kokoro import Request

        torch.manual_seed(seed)
        requests = []
        for u in utterances:
            ids = [vocabulary()[p] for p in u.phonemes]
            styles = np.stack([self._styles[voice][len(ids) - 1] for voice in u.speaker.voices])
            style = np.average(styles, axis=0, weights=u.speaker.parts).astype(np.float32)
            requests.append(Request(ids, style, u.pace * u.speaker.speed / u.speaker.pitch))
        return [
            SynthesizedSpeech(audio, [_SILENCE, *map(_phone_id, u.phonemes), _SILENCE], ends)
            for u, (audio, ends) in zip(utterances, self._model.speak(requests), strict=True)
        ]


# Silence before and after speech, in seconds: short, so that speech starts soon, but long enough to end in silence.
_BEFORE, _AFTER = 0.06, 0.12
_QUIET_DB = -40.0
_LEVEL = 0.08


def recording(
    spoken: SynthesizedSpeech, speaker: Speaker, *, gain: float, multiple: int
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.uint8]]:
    """Speech of `speaker` at 24 kHz, trimmed and level-normalised, and the phone of each latent frame.

    gain: a factor on the level. Returns audio (samples,) int16, whose length is a multiple of `multiple`, and phone
    classes (samples / HOP,).
    """
    audio, stretch = _change_speed(spoken.audio, speaker.pitch)
    start, stop = _speech_bounds(audio)
    audio = audio[start:stop]
    audio *= gain * _LEVEL / max(float(np.sqrt(np.mean(audio**2))), 1e-4)
    peak = float(np.abs(audio).max(initial=0.0))
    audio /= max(1.0, peak / 0.98)
    # Padded in front, so that the trailing silence always has the same length.
    front = -len(audio) % multiple
    audio = np.concatenate((np.zeros(front, np.float32), audio))
    centres = (np.arange(len(audio) // HOP) + 0.5) * HOP - front + start
    at = np.searchsorted(spoken.ends * stretch * SAMPLE_RATE, centres)
    phones = np.array([*_without_marks(spoken.phones), _SILENCE], np.uint8)
    return (audio * 32767).astype(np.int16), phones[np.minimum(at, len(phones) - 1)]


def _without_marks(phones: list[int]) -> list[int]:
    """Phone classes with each mark replaced by the next phone, or by silence at the end."""
    marked = list(phones)
    for i in range(len(marked) - 2, -1, -1):
        if marked[i] == -1:
            marked[i] = marked[i + 1]
    return [max(phone, _SILENCE) for phone in marked]


def _change_speed(audio: FloatArray, pitch: float) -> tuple[FloatArray, float]:
    """`audio` played `pitch` times as fast, and the factor for times in it."""
    if pitch == 1.0:
        return audio.copy(), 1.0
    padded = scipy.fft.next_fast_len(len(audio) + 256, real=True)
    resampled = scipy.signal.resample(np.pad(audio, (0, padded - len(audio))), round(padded / pitch))
    return np.asarray(resampled[: round(len(audio) / pitch)], np.float32), 1.0 / pitch


def _speech_bounds(audio: FloatArray) -> tuple[int, int]:
    """Start and end of speech in samples: from just before the first loud 10 ms to just after the last."""
    frame = SAMPLE_RATE // 100
    energy = np.square(audio[: len(audio) // frame * frame].reshape(-1, frame)).mean(axis=1)
    loud = np.nonzero(energy > energy.max(initial=1e-9) * 10 ** (_QUIET_DB / 10))[0]
    if not len(loud):
        return 0, len(audio)
    start = max(0, int(loud[0]) * frame - round(_BEFORE * SAMPLE_RATE))
    return start, min(len(audio), int(loud[-1] + 1) * frame + round(_AFTER * SAMPLE_RATE))
