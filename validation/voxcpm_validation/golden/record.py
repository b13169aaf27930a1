"""Golden records: one JSON file for each key, and the comparison of new speech with a record."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from voxcpm_constants.errors import InputError, first_wrong_field
from voxcpm_constants.manifest import Source
from voxcpm_runtime.storage.whole_file import make_folder, whole_file
from voxcpm_validation.golden.cases import SpeechRecord
from voxcpm_validation.golden.key import GoldenKey

RECORDS = Path(__file__).with_name("records")
"""Folder of the built-in voice's records."""


class GoldenRecord(BaseModel):
    """The recorded speech of all cases for one key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: GoldenKey
    voice: str
    """The result of `voice_digest`."""
    date: dt.date
    cases: dict[str, SpeechRecord]

    def write(self, folder: Path) -> Path:
        """Write the record and return its path; an earlier record of the same machine and precision is replaced.

        Raises InputError if the file cannot be written.
        """
        path = folder / self.key.file_name
        try:
            make_folder(folder)
            with whole_file(path) as file:
                file.write(self.model_dump_json(indent=1).encode() + b"\n")
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
        return path


def voice_digest(source: Source) -> str:
    """Digest of the checkpoint, followed by a plus sign and the LoRA's digest if one was merged."""
    return source.sha256 if source.lora is None else f"{source.sha256}+{source.lora.sha256}"


def read_records(folder: Path) -> tuple[GoldenRecord, ...]:
    """All records of a folder, sorted by file name; none if the folder is absent.

    Raises InputError for a JSON file that is not a golden record.
    """
    return tuple(_read(path) for path in sorted(folder.glob("*.json")))


def nearest(key: GoldenKey, voice: str, records: Iterable[GoldenRecord]) -> GoldenRecord | None:
    """The record of this voice and precision whose key has most fields in common with `key`, if there is one."""
    of_voice = (r for r in records if (r.voice, r.key.precision) == (voice, key.precision))
    return max(of_voice, key=lambda record: record.key.likeness(key), default=None)


@dataclass(frozen=True)
class Comparison:
    """New speech compared with the nearest record of its voice."""

    record: GoldenRecord | None
    exact: bool
    """Whether the keys are equal, so that hashes were compared; otherwise figures were."""
    differences: Mapping[str, tuple[str, ...]]
    """One line for each difference, by case."""


def compare(found: GoldenRecord, records: Iterable[GoldenRecord]) -> Comparison:
    """Compare new speech with the nearest of the records; without one for its voice, there are no differences."""
    record = nearest(found.key, found.voice, records)
    if record is None:
        return Comparison(None, exact=False, differences=dict.fromkeys(found.cases, ()))
    exact = record.key == found.key
    differences: dict[str, tuple[str, ...]] = {}
    for name, case in found.cases.items():
        if name not in record.cases:
            differences[name] = ("the record does not have this case; record it again with --record",)
        elif exact:
            differences[name] = tuple(hash_differences(case, record.cases[name], "the record"))
        else:
            differences[name] = tuple(figure_differences(case, record.cases[name], "the nearest record"))
    return Comparison(record, exact, differences)


def hash_differences(found: SpeechRecord, record: SpeechRecord, other: str) -> Iterator[str]:
    """One line for each difference between `found` and `record`. other: what the lines call `record`."""
    if found.samples != record.samples:
        yield f"{found.samples} samples, {other} has {record.samples}"
    if found.boundaries != record.boundaries:
        yield f"chunks end at {_listed(found.boundaries)}, {other} has {_listed(record.boundaries)}"
    for index, (chunk, expected) in enumerate(zip(found.chunks, record.chunks, strict=False)):
        if chunk != expected:
            yield f"chunk {index}: PCM16 is not that of {other}"
    if (found.samples, found.chunks) == (record.samples, record.chunks):
        for line in figure_differences(found, record, other):
            yield f"equal hashes, but {line}"


def figure_differences(found: SpeechRecord, record: SpeechRecord, other: str) -> Iterator[str]:
    """One line for each figure that differs by more than another machine's rounding explains.

    Free-running speech may diverge after a rounding difference (TRIALS.md). fp16 arithmetic, int8 instead of fp16 and
    other numbers of threads did not change the lengths; they changed RMS by at most 0.86 dB, the peak by 0.81 dB and
    the silence ratio by 0.021. These wider tolerances detect only speech that is plainly wrong.
    """
    figures = (
        ("length", found.samples, record.samples, 0.2 * record.samples, " samples"),
        ("RMS", _decibels(found.rms), _decibels(record.rms), 3.0, " dBFS"),
        ("peak", _decibels(found.peak), _decibels(record.peak), 3.0, " dBFS"),
        ("silence ratio", found.silence_ratio, record.silence_ratio, 0.1, ""),
    )
    for name, value, expected, tolerance, unit in figures:
        if not abs(value - expected) <= tolerance:
            yield (
                f"{name} {value:.6g}{unit}, {other} has {expected:.6g}; expected at most {tolerance:g} apart"
            )


def _decibels(level: float) -> float:
    """A linear level in dB, at least that of one step of 16 bits."""
    return 20.0 * math.log10(max(level, 1 / 32767))


def _listed(boundaries: Sequence[int]) -> str:
    return ", ".join(map(str, boundaries)) or "the end only"


def _read(path: Path) -> GoldenRecord:
    try:
        return GoldenRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InputError(
            f"{path}: no golden record: {first_wrong_field(error)}; record it again with validate --golden --record"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
