"""Golden records: hashes of what a bundle says, one JSON file for each key."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from voxcpm_constants.errors import InputError, first_wrong_field
from voxcpm_runtime.audio.pcm import Audio, pcm16
from voxcpm_runtime.storage.whole_file import make_folder, whole_file
from voxcpm_validation.golden.key import GoldenKey

RECORDS = Path(__file__).with_name("records")
"""Folder of the built-in voice's records."""


class SpeechRecord(BaseModel):
    """Hashes of one utterance's audio."""

    # Records of earlier releases have levels, too.
    model_config = ConfigDict(extra="ignore", frozen=True)

    samples: int
    boundaries: tuple[int, ...]
    """The end of each chunk except the last, in samples."""
    chunks: tuple[str, ...]
    """SHA-256 of each chunk's 16-bit little-endian samples."""

    @classmethod
    def of(cls, chunks: Sequence[Audio]) -> SpeechRecord:
        """The record of the chunks (samples,) of one utterance."""
        *boundaries, samples = accumulate(len(chunk) for chunk in chunks)
        digests = (hashlib.sha256(pcm16(chunk).astype("<i2").tobytes()).hexdigest() for chunk in chunks)
        return cls(samples=samples, boundaries=tuple(boundaries), chunks=tuple(digests))

    def differences(self, other: SpeechRecord, name: str) -> Iterator[str]:
        """One line for each difference from another record, which lines call `name`."""
        if self.samples != other.samples:
            yield f"{self.samples} samples, {name} has {other.samples}"
        if self.boundaries != other.boundaries:
            yield f"chunks end at {_listed(self.boundaries)}, {name} has {_listed(other.boundaries)}"
        for index, (chunk, expected) in enumerate(zip(self.chunks, other.chunks, strict=False)):
            if chunk != expected:
                yield f"chunk {index}: PCM16 is not that of {name}"


class GoldenRecord(BaseModel):
    """The recorded speech of all cases for one key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: GoldenKey
    voice: str
    """SHA-256 of the checkpoint, followed by a plus sign and the LoRA's if one was merged."""
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


def read_records(folder: Path) -> tuple[GoldenRecord, ...]:
    """All records of a folder, sorted by file name. Raises InputError for a JSON file that is not a golden record."""
    return tuple(_read(path) for path in sorted(folder.glob("*.json")))


def _read(path: Path) -> GoldenRecord:
    try:
        return GoldenRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InputError(
            f"{path}: no golden record: {first_wrong_field(error)}; record it again with validate --golden --record"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def _listed(boundaries: Sequence[int]) -> str:
    return ", ".join(map(str, boundaries)) or "the end only"
