"""Finished segments of a long text, saved next to the output file so that a later run can resume."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from voxcpm_constants.bounds import MAX_VOICE_BYTES
from voxcpm_constants.errors import InputError, os_reason
from voxcpm_constants.file_locks import Lock, lock_folder
from voxcpm_constants.json_files import parsed_json, read_bounded, read_json
from voxcpm_constants.tensor_files import dump_tensors, load_tensors
from voxcpm_runtime.argument_types import file_argument
from voxcpm_runtime.speech.results import SpokenSegment
from voxcpm_runtime.storage.atomic_file import atomic_file, hidden_sibling

_PLAN = "plan.json"
_ARRAYS = ("audio", "latents")
_METADATA_KEY, _PLACE_KEY = "segment", "place"


class SavedSegments:
    """Segments of one speech, saved in a folder next to its output file.

    output: the audio file to write. digest: SHA-256 over everything that determines the speech, except for a random
    seed. drawn: whether `seed` is random; then the seed of an earlier run replaces it. Segments with another digest or
    seed are deleted when the first segment of this run is saved.

    Raises InputError, as `put` does, while another run saves segments of the same output.
    """

    def __init__(self, output: Path, digest: str, seed: int, *, drawn: bool) -> None:
        self._output = file_argument(output, "output")
        self.folder = segments_folder(self._output)
        self._discard_folder = hidden_sibling(self._output, "discarded")
        self.seed = seed
        self._digest = digest
        self._lock: Lock | None = None
        self._mutex = threading.Lock()
        # Fail before any work if another run has the lock. It is acquired when the first segment is saved.
        if (lock := self._try_lock()) is not None:
            lock.release()
        recorded = _plan_in(self.folder)
        self._matches = recorded.get("digest") == digest and (drawn or recorded.get("seed") == seed)
        if self._matches and isinstance(recorded.get("seed"), int):
            self.seed = recorded["seed"]

    @property
    def count(self) -> int:
        """Number of saved segments of this speech."""
        return len(list(self.folder.glob("*.segment"))) if self._matches else 0

    def get(self, index: int) -> SpokenSegment | None:
        """The saved segment of that index; None if it is missing, damaged, or from another speech or index."""
        if not self._matches:
            return None
        try:
            found, metadata = load_tensors(read_bounded(self._path(index), MAX_VOICE_BYTES))
            if metadata[_PLACE_KEY] != self._place(index):
                return None
            arrays: dict[str, Any] = {name: found[name] for name in _ARRAYS}
            return SpokenSegment(**parsed_json(metadata[_METADATA_KEY]), **arrays)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, index: int, segment: SpokenSegment) -> None:
        """Save a segment. Raises InputError if it cannot be written."""
        fields: dict[str, Any] = asdict(segment)
        arrays = {name: fields.pop(name) for name in _ARRAYS}
        try:
            # Several threads may save segments.
            with self._mutex:
                if self._lock is None:
                    self._acquire()
            with atomic_file(self._path(index)) as file:
                file.write(
                    dump_tensors(arrays, {_METADATA_KEY: json.dumps(fields), _PLACE_KEY: self._place(index)})
                )
        except OSError as error:
            # Remove the folder if it is empty.
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            raise InputError(f"{self.folder}: cannot be written ({os_reason(error)})") from None

    def discard(self) -> None:
        """Delete all saved segments, unless another run is saving its own."""
        with contextlib.suppress(InputError):
            self._lock = self._lock or self._try_lock()
        # May be left from a killed run.
        shutil.rmtree(self._discard_folder, ignore_errors=True)
        if self._lock is not None:
            # Atomic, so that no run finds a part of the segments and speaks the others again.
            with contextlib.suppress(OSError):
                self.folder.rename(self._discard_folder)
            for folder in (self._discard_folder, self.folder):
                shutil.rmtree(folder, ignore_errors=True)
            self.release()

    def release(self) -> None:
        """Release the lock until this run saves the next segment."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _acquire(self) -> None:
        """Create and lock the folder, and delete the segments of another speech."""
        while self._lock is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = self._try_lock()
        plan = {"digest": self._digest, "seed": self.seed}
        try:
            if _plan_in(self.folder) != plan:
                for earlier in self.folder.iterdir():
                    earlier.unlink()
                with atomic_file(self.folder / _PLAN) as file:
                    file.write(json.dumps(plan).encode())
        except BaseException:
            # Segments must not be saved without the plan.
            self.release()
            raise
        self._matches = True

    def _try_lock(self) -> Lock | None:
        """A lock on the folder; None if the folder does not exist. Raises InputError while another run has it."""
        try:
            return lock_folder(self.folder)
        except BlockingIOError:
            raise InputError(
                f"{self._output}: another run is writing to this file; wait for it, or choose another output"
            ) from None
        except FileNotFoundError:
            return None

    def _place(self, index: int) -> str:
        """Metadata of the segment with this index, so that misplaced files are detected."""
        return json.dumps({"digest": self._digest, "seed": self.seed, "index": index})

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:05d}.segment"


def segments_folder(output: Path) -> Path:
    """The folder of the saved segments of an output file."""
    return hidden_sibling(output, "segments")


def _plan_in(folder: Path) -> dict[str, Any]:
    """The plan of a folder's segments; empty if missing or damaged. Raises OSError if it cannot be read."""
    try:
        plan = read_json(folder / _PLAN)
    except (FileNotFoundError, ValueError):
        return {}
    return plan if isinstance(plan, dict) else {}
