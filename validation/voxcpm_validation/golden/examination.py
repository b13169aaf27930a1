"""Examination of a bundle: its speech compared between processes, chunk sizes and offline generation."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voxcpm_constants.step_models import Precision
from voxcpm_runtime.audio.pcm import Audio, pcm16
from voxcpm_runtime.backends.choice import Backend
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.golden.cases import (
    CASES,
    CHUNKING,
    LENGTHS,
    GoldenCase,
    SpeechRecord,
    case_arguments,
    open_voice,
    recorded_elsewhere,
    streamed,
)
from voxcpm_validation.golden.key import golden_key
from voxcpm_validation.golden.record import GoldenRecord, hash_differences, voice_digest

OTHER_CHUNKS = (1, 2, LENGTHS["max_len"])
"""Patches in a chunk that are tried besides the recorded ones; the last number makes a single chunk."""


@dataclass(frozen=True)
class Examination:
    """All cases in one precision, each spoken offline, in several chunk sizes and in another process."""

    record: GoldenRecord
    """The record that this machine would write today."""
    failures: Mapping[str, tuple[str, ...]]
    """Differences between offline, other chunk sizes and another process, by case."""

    @property
    def is_consistent(self) -> bool:
        """Whether no case has failures, which is required for a record."""
        return not any(self.failures.values())


def examine(
    bundle: Path,
    precision: Precision,
    backend: Backend,
    *,
    cases: Sequence[GoldenCase] = CASES,
    report: Callable[[str], None] = lambda line: None,
) -> Examination:
    """Speak every case offline, in several chunk sizes and in another process; `report` is called with each part.

    Raises what opening a bundle raises, and BrokenProcessPool if the other process dies.
    """
    tts = open_voice(bundle, precision, backend)
    report(f"{precision}: another process")
    elsewhere = recorded_elsewhere(bundle, precision, backend, cases)
    records, failures = {}, {}
    for case in cases:
        report(f"{precision}: {case.name}")
        chunks = streamed(tts, case, **CHUNKING)
        records[case.name] = SpeechRecord.of(chunks, tts.sample_rate)
        found = hash_differences(elsewhere[case.name], records[case.name], "this process")
        failures[case.name] = (*found, *_failures(tts, case, np.concatenate(chunks), records[case.name]))
    record = GoldenRecord(
        key=golden_key(tts.bundle, backend),
        voice=voice_digest(tts.bundle.manifest.source),
        date=dt.datetime.now(dt.timezone.utc).date(),
        cases=records,
    )
    return Examination(record, failures)


def _failures(tts: VoxCPM, case: GoldenCase, audio: Audio, record: SpeechRecord) -> Iterator[str]:
    speech = tts.speak(**case_arguments(case), seed=case.seed)
    yield from _unequal(speech.audio, audio, record, "offline")
    for size in OTHER_CHUNKS:
        again = np.concatenate(streamed(tts, case, chunk_patches=size))
        yield from _unequal(again, audio, record, f"in chunks of {size}")


def _unequal(audio: Audio, expected: Audio, record: SpeechRecord, how: str) -> Iterator[str]:
    """A line that says how audio spoken in another way differs from the expected, and in which chunk first."""
    if len(audio) != len(expected):
        yield f"{how} {len(audio)} samples, streamed {len(expected)}"
        return
    wrong = np.flatnonzero(pcm16(audio) != pcm16(expected))
    if len(wrong):
        chunk = int(np.searchsorted(record.boundaries, wrong[0], side="right"))
        yield f"chunk {chunk}: {how} {len(wrong)} samples differ, the first at {wrong[0]}"
