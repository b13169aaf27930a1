"""Golden cases: fixed texts, prompts and seeds, and what is recorded of the speech that a bundle makes of them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter

from voxcpm_runtime.audio.pcm import Audio, levels, pcm16
from voxcpm_runtime.backends.loading import Backend
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.listening.material import material, prompt_clip

LENGTHS: dict[str, Any] = {"min_len": 8, "max_len": 12}
"""Patches: few, and the stop head may have a say."""
SEGMENT_TOKENS = 200
"""A case is one utterance, whatever the default is."""
CHUNKING = {"chunk_patches": 5, "first_chunk_patches": 1}
"""Of the recorded chunks."""
THREADS = 2
"""Of one operation, portable only: with another number the AudioVAE encoder's convolutions round differently."""


class GoldenCase(BaseModel):
    """One utterance. voice: of the listening test, to be continued."""

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
    GoldenCase(name="numbers", text="on may 3 she paid 42 dollars for 7 books.", seed=3, voice="female"),
)


class SpeechRecord(BaseModel):
    """What is recorded of a speech."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    samples: int
    boundaries: tuple[int, ...]
    """Where each chunk but the last ends, in samples."""
    chunks: tuple[str, ...]
    """SHA-256 of each chunk's 16-bit little-endian samples."""
    peak: float
    rms: float
    """Both linear."""
    silence_ratio: float

    @classmethod
    def of(cls, chunks: Sequence[Audio], sample_rate: int) -> SpeechRecord:
        found = levels(np.concatenate(chunks), sample_rate)
        *boundaries, samples = accumulate(len(chunk) for chunk in chunks)
        return cls(
            samples=samples,
            boundaries=tuple(boundaries),
            chunks=tuple(pcm16_digest(chunk) for chunk in chunks),
            peak=round(found.peak, 6),
            rms=round(found.rms, 6),
            silence_ratio=round(found.silence_ratio, 6),
        )


def pcm16_digest(audio: Audio) -> str:
    return hashlib.sha256(pcm16(audio).astype("<i2").tobytes()).hexdigest()


def open_voice(bundle: Path, precision: str, backend: Backend) -> VoxCPM:
    return VoxCPM.from_bundle(bundle, precision, backend, threads=THREADS)


def case_arguments(case: GoldenCase) -> dict[str, Any]:
    """Of `VoxCPM.speak`, but for the seed."""
    arguments: dict[str, Any] = {
        "text": case.text,
        "retry_badcase": False,
        "segment_tokens": SEGMENT_TOKENS,
        **LENGTHS,
    }
    if case.voice is not None:
        voice = next(voice for voice in material().voices if voice.name == case.voice)
        arguments |= {"prompt_wav_path": tuple(prompt_clip(voice)), "prompt_text": voice.transcript}
    return arguments


def streamed(tts: VoxCPM, case: GoldenCase, **chunking: Any) -> list[Audio]:
    """The chunks of a case."""
    return list(tts.generate_streaming(**case_arguments(case), seed=case.seed, **chunking))


def recorded(tts: VoxCPM, cases: Iterable[GoldenCase]) -> dict[str, SpeechRecord]:
    """Each case's record, by name."""
    return {case.name: SpeechRecord.of(streamed(tts, case, **CHUNKING), tts.sample_rate) for case in cases}


class _Errand(BaseModel):
    """What another process is asked for."""

    bundle: Path
    precision: str
    backend: Backend
    cases: tuple[GoldenCase, ...]


_RECORDS = TypeAdapter(dict[str, SpeechRecord])


def recorded_elsewhere(
    bundle: Path, precision: str, backend: Backend, cases: Iterable[GoldenCase]
) -> Mapping[str, SpeechRecord]:
    """As `recorded`, by another process. Raises CalledProcessError, whose errors are on standard error."""
    errand = _Errand(bundle=bundle, precision=precision, backend=backend, cases=tuple(cases))
    finished = subprocess.run(  # noqa: S603 - this module itself
        [sys.executable, "-m", __name__],
        input=errand.model_dump_json().encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    return _RECORDS.validate_json(finished.stdout)


def _run_errand() -> None:
    errand = _Errand.model_validate_json(sys.stdin.buffer.read())
    tts = open_voice(errand.bundle, errand.precision, errand.backend)
    sys.stdout.buffer.write(_RECORDS.dump_json(recorded(tts, errand.cases)))


if __name__ == "__main__":
    _run_errand()
