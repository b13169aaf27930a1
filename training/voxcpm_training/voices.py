"""The synthesizers whose speech is trained on: hibari (one natural female voice) and three voices of flite.

Each voice becomes several speakers: it speaks more slowly, and the recording is played faster by the same factor, which
raises the pitch and shortens the vocal tract, but keeps the duration. A factor below 1 does the opposite. Both
synthesizers also report the times of phones.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.fft
import scipy.signal

SAMPLE_RATE = 16_000
FloatArray = npt.NDArray[np.float32]

_SILENCE = 0
_PHONES = "iɪɛæɑʌəɔʊuɜAIOWYptkbdɡfvθðszʃʒhʧʤmnŋlɹjw"
PHONE_IDS = {phone: index + 1 for index, phone in enumerate(_PHONES)}
PHONE_CLASSES = len(_PHONES) + 1
"""Number of classes: silence, and the phones of hibari's alphabet, in which stress and length marks have no class."""
_VARIANTS_OF_PHONES = {
    "ᵊ": "ə", "ɐ": "ə", "ɾ": "t", "ɚ": "ɜ", "T": "t", "ᵻ": "ɪ", "g": "ɡ", "a": "ɑ", "o": "ɔ", "e": "ɛ",
}  # fmt: skip
_ARPABET = {
    "aa": "ɑ", "ae": "æ", "ah": "ʌ", "ao": "ɔ", "aw": "W", "ax": "ə", "ay": "I", "b": "b", "ch": "ʧ", "d": "d",
    "dh": "ð", "eh": "ɛ", "er": "ɜ", "ey": "A", "f": "f", "g": "ɡ", "hh": "h", "ih": "ɪ", "iy": "i", "jh": "ʤ",
    "k": "k", "l": "l", "m": "m", "n": "n", "ng": "ŋ", "ow": "O", "oy": "Y", "p": "p", "r": "ɹ", "s": "s",
    "sh": "ʃ", "t": "t", "th": "θ", "uh": "ʊ", "uw": "u", "v": "v", "w": "w", "y": "j", "z": "z", "zh": "ʒ",
}  # fmt: skip


@dataclass(frozen=True)
class Spoken:
    """Synthesized audio (samples,) at `rate` Hz; phone i lasts from ends[i - 1] to ends[i], in seconds."""

    audio: FloatArray
    rate: int
    phones: list[int]
    ends: FloatArray


class Synthesizer(Protocol):
    """A voice of a speech synthesizer."""

    def speak(self, text: str, speed: float, seed: int) -> Spoken:
        """Speech at `speed` times the voice's own pace."""
        ...


@dataclass(frozen=True)
class Speaker:
    """One speaker: a voice whose recordings are played `pitch` times as fast."""

    voice: str
    pitch: float
    share: float
    """Share of all utterances; the shares of all speakers add up to 1."""


def _family(voice: str, natural: float, variants: float, pitches: tuple[float, ...]) -> list[Speaker]:
    shares = [Speaker(voice, pitch, variants / len(pitches)) for pitch in pitches]
    return [Speaker(voice, 1.0, natural), *shares]


SPEAKERS = (
    *_family("hibari", 0.42, 0.22, (0.74, 0.78, 0.82, 0.86, 0.90, 0.94, 1.06, 1.11, 1.16)),
    *_family("rms", 0.15, 0.05, (0.88, 0.94, 1.07, 1.14)),
    *_family("slt", 0.07, 0.05, (0.86, 0.93, 1.07)),
    *_family("awb", 0.03, 0.01, (0.93, 1.07)),
)


class Hibari:
    """hibari's voice (24 kHz), with the durations that its network predicts."""

    def __init__(self) -> None:
        # Before hibari, which may import ONNX Runtime by itself.
        from voxcpm_training.onnx_runtime import ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3

        import onnx
        from hibari import Hibari as Voice  # type: ignore[import-untyped]

        model = onnx.load(str(resources.files("hibari").joinpath("assets/hibari.onnx")))
        # hibari's interface does not return durations, but its network computes their cumulative sum.
        sums = next(node.output[0] for node in model.graph.node if node.op_type == "CumSum")
        model.graph.output.append(onnx.ValueInfoProto(name=sums))
        self._session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._voice = Voice()

    def speak(self, text: str, speed: float, seed: int) -> Spoken:
        """Speech at `speed` times the voice's own pace; `seed` is that of the noise in the signal."""
        from hibari import dsp

        phonemes = "".join(self._voice.phonemize(text))
        ids = self._voice.ids(phonemes)
        *spectrum, sums = self._session.run(
            None, {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
        )
        audio = dsp.synth(*(part[0] for part in spectrum), np.random.default_rng(seed))
        frames = np.asarray(sums, np.float32).reshape(-1)
        known = [c for c in phonemes if c in self._voice.vocab]
        return Spoken(
            audio=np.asarray(audio).astype(np.float32),
            rate=24_000,
            phones=[_SILENCE, *(_phone_id(c) for c in known), _SILENCE],
            ends=np.asarray(frames / frames[-1] * (len(audio) / 24_000), np.float32),
        )


def _phone_id(character: str) -> int:
    """Class of a character in hibari's alphabet: -1 for stress and length marks, silence for punctuation and spaces."""
    if character in "ˈˌː":
        return -1
    return PHONE_IDS.get(_VARIANTS_OF_PHONES.get(character, character), _SILENCE)


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p), ("sample_rate", ctypes.c_int), ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int), ("samples", ctypes.POINTER(ctypes.c_short)),
    )  # fmt: skip


class _Voice(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("features", ctypes.c_void_p))


class Flite:
    """A voice of flite (`libflite1`, 16 kHz)."""

    def __init__(self, voice: str) -> None:
        # The voices need symbols of these libraries.
        for library in ("libflite_usenglish.so.1", "libflite_cmulex.so.1"):
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        self._flite: Any = ctypes.CDLL("libflite.so.1", ctypes.RTLD_GLOBAL)
        register = getattr(ctypes.CDLL(f"libflite_cmu_us_{voice}.so.1"), f"register_cmu_us_{voice}")
        flite, pointer, text = self._flite, ctypes.c_void_p, ctypes.c_char_p
        for name, result, arguments in (
            ("flite_synth_text", pointer, (text, pointer)),
            ("utt_wave", ctypes.POINTER(_Wave), (pointer,)),
            ("utt_relation", pointer, (pointer, text)),
            ("relation_head", pointer, (pointer,)),
            ("item_next", pointer, (pointer,)),
            ("item_feat_float", ctypes.c_float, (pointer, text)),
            ("item_feat_string", text, (pointer, text)),
            ("delete_utterance", None, (pointer,)),
            ("feat_set_float", None, (pointer, text, ctypes.c_float)),
        ):
            function = getattr(flite, name)
            function.restype, function.argtypes = result, arguments
        flite.flite_init()
        register.restype, register.argtypes = ctypes.POINTER(_Voice), (pointer,)
        self._voice = register(None)

    def speak(self, text: str, speed: float, seed: int) -> Spoken:
        """Speech at `speed` times the voice's own pace. flite is deterministic, so `seed` is not used."""
        del seed
        flite = self._flite
        flite.feat_set_float(self._voice.contents.features, b"duration_stretch", 1.0 / speed)
        utterance = flite.flite_synth_text(text.encode(), self._voice)
        wave = flite.utt_wave(utterance).contents
        audio = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).astype(np.float32) / np.float32(
            32768
        )
        rate, phones, ends = int(wave.sample_rate), [], []
        segment = flite.relation_head(flite.utt_relation(utterance, b"Segment"))
        while segment:
            name = flite.item_feat_string(segment, b"name").decode()
            phones.append(PHONE_IDS.get(_ARPABET.get(name, ""), _SILENCE))
            ends.append(flite.item_feat_float(segment, b"end"))
            segment = flite.item_next(segment)
        flite.delete_utterance(utterance)
        return Spoken(audio, rate, phones, np.asarray(ends, np.float32))


def synthesizer(voice: str) -> Synthesizer:
    """The synthesizer of a voice, "hibari" or one of flite's. Raises OSError if flite's libraries are missing."""
    return Hibari() if voice == "hibari" else Flite(voice)


# Silence before and after speech, in seconds: short, so that speech starts at once, but long enough to end in silence.
_BEFORE, _AFTER = 0.06, 0.12
_QUIET_DB = -40.0
_LEVEL = 0.08


def recording(
    synthesizer: Synthesizer,
    speaker: Speaker,
    text: str,
    *,
    speed: float,
    gain: float,
    hop: int,
    multiple: int,
    seed: int,
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.uint8]]:
    """Speech of `speaker` at 16 kHz, trimmed and normalised to one level, and the phone of every `hop` samples.

    Returns audio (samples,) int16, whose length is a multiple of `multiple`, and phone classes (samples / hop,).
    """
    spoken = synthesizer.speak(text, speed / speaker.pitch, seed)
    audio, stretch = _played(spoken.audio, spoken.rate, speaker.pitch)
    start, stop = _speech(audio)
    audio = audio[start:stop]
    audio *= gain * _LEVEL / max(float(np.sqrt(np.mean(audio**2))), 1e-4)
    peak = float(np.abs(audio).max(initial=0.0))
    audio /= max(1.0, peak / 0.98)
    # The zeros are in front, so that the silence after speech always has the same length.
    front = -len(audio) % multiple
    audio = np.concatenate((np.zeros(front, np.float32), audio))
    centres = (np.arange(len(audio) // hop) + 0.5) * hop - front + start
    at = np.searchsorted(spoken.ends * stretch * SAMPLE_RATE, centres)
    phones = np.array([*_without_marks(spoken.phones), _SILENCE], np.uint8)
    return (audio * 32767).astype(np.int16), phones[np.minimum(at, len(phones) - 1)]


def _without_marks(phones: list[int]) -> list[int]:
    """Phone classes in which a mark has the class of the next phone; at the end, where there is none, silence."""
    marked = list(phones)
    for i in range(len(marked) - 2, -1, -1):
        if marked[i] == -1:
            marked[i] = marked[i + 1]
    return [max(phone, _SILENCE) for phone in marked]


def _played(audio: FloatArray, rate: int, pitch: float) -> tuple[FloatArray, float]:
    """`audio` at 16 kHz, played `pitch` times as fast, and the factor by which times in it change."""
    ratio = SAMPLE_RATE / (rate * pitch)
    if ratio == 1.0:
        return audio.copy(), 1.0
    padded = scipy.fft.next_fast_len(len(audio) + 256, real=True)
    samples = round(padded * ratio)
    resampled = scipy.signal.resample(np.pad(audio, (0, padded - len(audio))), samples)
    return np.asarray(resampled[: round(len(audio) * ratio)], np.float32), 1.0 / pitch


def _speech(audio: FloatArray) -> tuple[int, int]:
    """Start and end of speech, in samples: from a little before the first loud 10 ms to a little after the last."""
    frame = SAMPLE_RATE // 100
    energy = np.square(audio[: len(audio) // frame * frame].reshape(-1, frame)).mean(axis=1)
    loud = np.nonzero(energy > energy.max(initial=1e-9) * 10 ** (_QUIET_DB / 10))[0]
    if not len(loud):
        return 0, len(audio)
    start = max(0, int(loud[0]) * frame - round(_BEFORE * SAMPLE_RATE))
    return start, min(len(audio), int(loud[-1] + 1) * frame + round(_AFTER * SAMPLE_RATE))
