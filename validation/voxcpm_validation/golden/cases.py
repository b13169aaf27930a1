"""Golden cases: fixed texts, prompts and seeds, and the hashes and figures that are recorded of their speech."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.pcm import Audio, pcm16
from voxcpm_runtime.backends.choice import Backend
from voxcpm_runtime.backends.machine import cores
from voxcpm_runtime.options import SEGMENT_TOKENS
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.listening.material import material, prompt_clip

LENGTHS: dict[str, Any] = {"min_len": 8, "max_len": 12}
"""Smallest and largest number of patches: low, for speed, and different, so that the stop head has an effect."""
CHUNKING = {"chunk_patches": 5, "first_chunk_patches": 1}
"""Patches in each recorded chunk."""
THREADS = 2
"""Threads of one operation on the portable backend. The AudioVAE encoder's rounding depends on their number."""

_FRAME_SECONDS = 0.02
_SILENCE_DBFS = -50.0


class GoldenCase(BaseModel):
    """One utterance. voice: name of a voice of the listening test whose prompt is continued; None for zero-shot."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    text: str
    seed: int
    voice: str | None = None


CASES = (
    GoldenCase(name="short", text="hello.", seed=1),
    GoldenCase(
        name="long",
        text="the old farmer fed his chickens before sunrise, and then he walked slowly down to the river.",
        seed=2,
    ),
    GoldenCase(name="numbers", text="on may 3 she paid 42 dollars for 7 books.", seed=3, voice="heart"),
)


class SpeechRecord(BaseModel):
    """Hashes and figures of one utterance's audio."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    samples: int
    boundaries: tuple[int, ...]
    """The end of each chunk except the last, in samples."""
    chunks: tuple[str, ...]
    """SHA-256 of each chunk's 16-bit little-endian samples."""
    peak: float
    """Largest magnitude; full scale is 1."""
    rms: float
    """Root mean square; full scale is 1."""
    silence_ratio: float
    """Share of 20 ms frames, a shorter last one included, whose RMS is below -50 dBFS."""

    @classmethod
    def of(cls, chunks: Sequence[Audio], sample_rate: int) -> SpeechRecord:
        """The record of the chunks (samples,) of one utterance. sample_rate: in Hz."""
        audio = np.concatenate(chunks)
        power = np.square(audio, dtype=np.float64)
        starts = np.arange(0, len(audio), round(_FRAME_SECONDS * sample_rate))
        frame_power = np.add.reduceat(power, starts) / np.diff(starts, append=len(audio))
        *boundaries, samples = accumulate(len(chunk) for chunk in chunks)
        return cls(
            samples=samples,
            boundaries=tuple(boundaries),
            chunks=tuple(pcm16_digest(chunk) for chunk in chunks),
            peak=round(float(np.abs(audio).max()), 6),
            rms=round(math.sqrt(power.mean()), 6),
            silence_ratio=round(float(np.mean(frame_power < 10.0 ** (_SILENCE_DBFS / 10.0))), 6),
        )


def pcm16_digest(audio: Audio) -> str:
    """SHA-256 of audio (samples,) as 16-bit little-endian samples."""
    return hashlib.sha256(pcm16(audio).astype("<i2").tobytes()).hexdigest()


def open_voice(bundle: Path, precision: str, backend: Backend) -> VoxCPM:
    """A bundle opened with the number of threads that records are made with.

    Raises InputError on a machine with fewer cores, and what opening a bundle raises.
    """
    if cores() < THREADS:
        raise InputError(f"records are made with {THREADS} threads, and this process may use {cores()} core")
    return VoxCPM.from_bundle(bundle, precision, backend, threads=THREADS)


def case_arguments(case: GoldenCase) -> dict[str, Any]:
    """The arguments of a case for `VoxCPM.speak`, without the seed."""
    arguments: dict[str, Any] = {
        "text": case.text,
        "retry_badcase": False,
        # A case is one utterance, whatever the default is.
        "segment_tokens": SEGMENT_TOKENS,
        **LENGTHS,
    }
    if case.voice is not None:
        voice = next(voice for voice in material().voices if voice.name == case.voice)
        arguments |= {"prompt_wav_path": tuple(prompt_clip(voice)), "prompt_text": voice.transcript}
    return arguments


def streamed(tts: VoxCPM, case: GoldenCase, **chunking: Any) -> list[Audio]:
    """The chunks (samples,) of a case. chunking: the options of `VoxCPM.generate_streaming` for chunk sizes."""
    return list(tts.generate_streaming(**case_arguments(case), seed=case.seed, **chunking))


def recorded_elsewhere(
    bundle: Path, precision: str, backend: Backend, cases: Sequence[GoldenCase]
) -> dict[str, SpeechRecord]:
    """The record of each case, by name, as a new process speaks it. Raises what opening a bundle raises."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_recorded, bundle, precision, backend, cases).result()


def _recorded(
    bundle: Path, precision: str, backend: Backend, cases: Sequence[GoldenCase]
) -> dict[str, SpeechRecord]:
    tts = open_voice(bundle, precision, backend)
    return {case.name: SpeechRecord.of(streamed(tts, case, **CHUNKING), tts.sample_rate) for case in cases}
