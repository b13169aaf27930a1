"""Examination of a bundle: its speech compared with a golden record, and between processes and chunk sizes."""

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
from voxcpm_validation.golden.key import GoldenKey, golden_key
from voxcpm_validation.golden.record import (
    GoldenRecord,
    figure_differences,
    hash_differences,
    nearest,
    voice_digest,
)

OTHER_CHUNKS = (1, 2, LENGTHS["max_len"])
"""Patches in a chunk that are tried beside the recorded chunking; the last number makes a single chunk."""


@dataclass(frozen=True)
class ExaminedCase:
    """One case in one precision."""

    case: str
    record: SpeechRecord
    failures: tuple[str, ...]
    """Differences between offline, other chunk sizes and another process."""


@dataclass(frozen=True)
class Examination:
    """All cases in one precision, each spoken offline, in several chunk sizes and in another process."""

    key: GoldenKey
    voice: str
    """The result of `voice_digest`."""
    cases: tuple[ExaminedCase, ...]

    @property
    def is_consistent(self) -> bool:
        """Whether no case has failures, which is required for a record."""
        return not any(case.failures for case in self.cases)

    def record(self, date: dt.date) -> GoldenRecord:
        """The golden record of these cases."""
        cases = {case.case: case.record for case in self.cases}
        return GoldenRecord(key=self.key, voice=self.voice, date=date, cases=cases)


@dataclass(frozen=True)
class Comparison:
    """Comparison of an examination with the nearest record of its voice."""

    record: GoldenRecord | None
    exact: bool
    """Whether the keys are equal, so that hashes were compared; otherwise figures were."""
    differences: Mapping[str, tuple[str, ...]]
    """One line for each difference, by case."""


def examine(
    bundle: Path,
    precision: Precision,
    backend: Backend,
    *,
    cases: Sequence[GoldenCase] = CASES,
    report: Callable[[str], None] = lambda line: None,
) -> Examination:
    """Speak every case offline, in several chunk sizes and in another process; `report` is called with each part.

    Raises what opening a bundle raises, and CalledProcessError if the other process fails.
    """
    tts = open_voice(bundle, precision, backend)
    report(f"{precision}: another process")
    elsewhere = recorded_elsewhere(bundle, precision, backend, cases)
    examined = []
    for case in cases:
        report(f"{precision}: {case.name}")
        examined.append(_examined(tts, case, elsewhere[case.name]))
    return Examination(
        key=golden_key(tts.bundle, backend),
        voice=voice_digest(tts.bundle.manifest.source),
        cases=tuple(examined),
    )


def compare(examination: Examination, records: Sequence[GoldenRecord]) -> Comparison:
    """Compare an examination with the nearest of the records; without one for its voice, there are no differences."""
    key = examination.key
    record = nearest(key, examination.voice, records)
    exact = record is not None and record.key == key
    differences = {}
    for case in examination.cases:
        found, expected = case.record, record.cases.get(case.case) if record else None
        if record is None:
            lines = []
        elif expected is None:
            lines = ["the record does not have this case; record it again with --record"]
        elif exact:
            lines = list(hash_differences(found, expected, "the record"))
        else:
            lines = list(figure_differences(found, expected, "the nearest record"))
        differences[case.case] = tuple(lines)
    return Comparison(record, exact, differences)


def _examined(tts: VoxCPM, case: GoldenCase, elsewhere: SpeechRecord) -> ExaminedCase:
    chunks = streamed(tts, case, **CHUNKING)
    record, audio = SpeechRecord.of(chunks, tts.sample_rate), np.concatenate(chunks)
    failures = list(hash_differences(elsewhere, record, "this process"))
    speech = tts.speak(**case_arguments(case), seed=case.seed)
    failures += _unequal(speech.audio, audio, record, "offline")
    for size in OTHER_CHUNKS:
        again = np.concatenate(streamed(tts, case, chunk_patches=size))
        failures += _unequal(again, audio, record, f"in chunks of {size}")
    return ExaminedCase(case.name, record, tuple(failures))


def _unequal(audio: Audio, expected: Audio, record: SpeechRecord, how: str) -> Iterator[str]:
    """A line that says how audio spoken in another way differs from the expected, and in which chunk first."""
    if len(audio) != len(expected):
        yield f"{how} {len(audio)} samples, streamed {len(expected)}"
        return
    wrong = np.flatnonzero(pcm16(audio) != pcm16(expected))
    if len(wrong):
        chunk = int(np.searchsorted(record.boundaries, wrong[0], side="right"))
        yield f"chunk {chunk}: {how} {len(wrong)} samples differ, the first at {wrong[0]}"
