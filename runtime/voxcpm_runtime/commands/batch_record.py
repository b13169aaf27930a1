"""`spoken.jsonl`: from which line of a batch each file in the folder was made, so that a later run can resume."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from voxcpm_constants.errors import InputError, os_reason
from voxcpm_constants.manifest import record_file

RECORD_FILE = "spoken.jsonl"


class SpokenLine(BaseModel):
    """One spoken utterance. The last entry with a file's name is about the current file.

    An entry is written just before its file appears. If the process is killed in between, the file is missing or an
    earlier one with a different SHA-256.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    line: int
    output: str
    """Path of the audio file below the folder, in POSIX form."""
    digest: str
    """SHA-256 over everything that determined the speech (`Arguments.digest`)."""
    seed: int
    """The seed of the speech; a fresh one if the line had none."""
    seconds: float
    """Seconds of speech."""
    samples: int
    bytes: int | None = None
    """Size of the audio file; None in a record of an earlier release."""
    sha256: str | None = None
    """SHA-256 of the audio file; None in a record of an earlier release."""
    suspicious: dict[int, str] = {}
    """The segments, by number from 1, that are suspicious in every attempt, and why: "long", "short" or "cut"."""

    def describes(self, path: Path) -> bool:
        """Whether a file is the one that this entry was written for. Raises OSError if it cannot be read."""
        if self.bytes is not None and self.bytes != path.stat().st_size:
            return False
        return self.sha256 is None or self.sha256 == record_file(path).sha256


class Record:
    """The record of a folder. Raises InputError if it cannot be read and written."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORD_FILE
        self._torn = False
        try:
            # Opened for writing now, so that nothing is spoken that cannot be recorded.
            with self._path.open("ab+") as file:
                file.seek(0)
                content = file.read()
                if content and not content.endswith(b"\n"):
                    # A run was killed while it wrote a line.
                    file.write(b"\n")
        except OSError as error:
            raise InputError(f"{self._path}: cannot be written ({os_reason(error)})") from None
        self._entries = {entry.output: entry for entry in map(_entry, content.splitlines()) if entry}

    def entry(self, output: str) -> SpokenLine | None:
        """The utterance of a file; None for a file that is not on record."""
        return self._entries.get(output)

    def add(self, entry: SpokenLine) -> None:
        """Append an entry. Raises InputError if it cannot be written."""
        line = json.dumps(entry.model_dump()) + "\n"
        try:
            with self._path.open("a", encoding="utf-8") as file:
                # After an entry that a full disk has cut off.
                file.write(f"\n{line}" if self._torn else line)
        except OSError as error:
            self._torn = True
            raise InputError(f"{self._path}: cannot be written ({os_reason(error)})") from None
        self._entries[entry.output] = entry


def _entry(line: bytes) -> SpokenLine | None:
    """The entry on a line; None for an incomplete one, whose file counts as not on record."""
    try:
        return SpokenLine.model_validate_json(line)
    except ValidationError:
        return None
