"""The folder of an unfinished bundle: finished parts survive an interruption, and it is renamed when complete.

The digests of a part are recorded when it is finished, so that a run that continues uses nothing that has changed
meanwhile, and the manifest says what was written.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from voxcpm_constants.errors import BundleError, InputError, os_reason
from voxcpm_constants.file_locks import Lock, lock_folder
from voxcpm_constants.json_files import json_content
from voxcpm_constants.manifest import FileRecord, Manifest, check_files, record_file
from voxcpm_conversion.replacing import (
    PLAN_FILE,
    empty_leftover,
    is_finished,
    partial_folder,
    put_back,
    remove_leftover,
    replaced_folder,
)

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_PARTS_FILE = "parts.json"
_SCRATCH_FOLDER = ".scratch"
_TEMPORARY_FOLDER = ".temporary"
_UNFINISHED = ".unfinished-"
_FILE_ERROR = re.compile(
    r"(filesystem error|\[MIL FileWriter\]): (?P<reason>[^\[\n]*[^\[\n\s])"
    r"|(?P<lost>A valid manifest does not exist|Unable to read file|Input stream is not valid)\b"
)
"""Messages of coremltools' C++, up to the paths, when a file could not be written, or not be read again: a failed write
of a small file goes unnoticed at first."""
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_FULL_BYTES = 1 << 20
"""If a write fails with less free space than this, the disk is full."""
_ONE_AT_A_TIME = threading.RLock()
"""Held while `tempfile` is patched, which affects the whole process."""
_Parts = dict[str, dict[str, FileRecord]]
"""The records of each finished part's files; parts and files by their paths relative to the bundle."""
_PARTS: TypeAdapter[_Parts] = TypeAdapter(_Parts)


class Workspace:
    """The folder `.NAME.partial` next to the bundle NAME. A part has its final name there only when complete.

    It removes leftovers under its own names; `bundle_folder` has checked that they are not the user's data. The folder
    is locked until `close`, or until the end of the context.
    """

    def __init__(self, bundle: Path, plan: dict[str, object]) -> None:
        """Continue a workspace with the same plan, or start a new one; parts that have changed are removed.

        Raises InputError if it cannot be written, and while another conversion writes the same bundle.
        """
        self.bundle = bundle
        self.folder = partial_folder(bundle)
        self._is_full = False
        # Parts of another plan (checkpoint, sizes, versions of tools) cannot be used.
        text = json.dumps(plan, indent=1, sort_keys=True)
        plan_file = self.folder / PLAN_FILE
        try:
            self._lock = _locked(self.folder)
            put_back(bundle)
            if plan_file.is_file():
                continues = plan_file.read_text(encoding="utf-8") == text
            else:
                continues = is_finished(self.folder, plan)
            if not continues:
                empty_leftover(self.folder)
            plan_file.write_text(text, encoding="utf-8")
            for folder in (_SCRATCH_FOLDER, _TEMPORARY_FOLDER):
                shutil.rmtree(self.folder / folder, ignore_errors=True)
            self._parts = _intact_parts(self.folder)
            _remove_others(self.folder, self.files())
        except BlockingIOError:
            raise InputError(
                f"{bundle}: another conversion is writing this bundle; wait for it, or choose another output"
            ) from None
        except OSError as error:
            raise InputError(f"{bundle.parent}: cannot write a bundle there ({os_reason(error)})") from None

    def close(self) -> None:
        """Unlock the folder. Finished parts stay for the next run."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        # Unlike a failed open, a failed write does not name its file.
        if isinstance(error, OSError) and error.filename is None and error.errno in _OF_THE_DISK:
            raise InputError(
                f"{self.folder}: cannot be written ({os_reason(error)}); the same command continues"
            ) from error
        if isinstance(error, RuntimeError) and self._is_full:
            raise InputError(
                f"{self.bundle.parent}: no space left on device; free some, and the same command continues"
            ) from error
        if isinstance(error, RuntimeError) and (found := _FILE_ERROR.match(str(error))):
            reason = found["reason"] or found["lost"]
            raise InputError(
                f"{self.bundle.parent}: cannot be written ({reason}); the same command continues"
            ) from error

    def has(self, part: str) -> bool:
        """Whether a part, by its path relative to the bundle, is finished."""
        return any(name == part or name.startswith(f"{part}/") for name in self.files())

    def files(self) -> dict[str, FileRecord]:
        """The records of all files of the finished parts, by path relative to the bundle."""
        records = {name: record for files in self._parts.values() for name, record in files.items()}
        return {name: records[name] for name in sorted(records, key=PurePosixPath)}

    def drop(self, folder: str) -> None:
        """Remove a folder of the bundle with all its parts."""
        shutil.rmtree(self.folder / folder, ignore_errors=True)
        for files in self._parts.values():
            for name in [name for name in files if name.startswith(f"{folder}/")]:
                del files[name]

    def add(self, part: str, write: Callable[[Path], object]) -> None:
        """Let `write(path)` make a file or folder under a temporary path, record its digests, then rename it.

        If it fails, nothing of it stays.
        """
        final = self.folder / part
        # coremltools decides the format by the suffix, so it stays at the end.
        unfinished = final.with_name(f"{_UNFINISHED}{final.name}")
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove(unfinished)
        try:
            write(unfinished)
        except BaseException:
            _remove(unfinished)
            raise
        self._open_to_others(unfinished)
        self._parts[part] = _recorded(unfinished, part)
        # Before the rename: a part without a record would be made again.
        written = self.folder / f"{_UNFINISHED}{_PARTS_FILE}"
        written.write_bytes(_PARTS.dump_json(self._parts, indent=1))
        written.replace(self.folder / _PARTS_FILE)
        unfinished.replace(final)

    def _open_to_others(self, part: Path) -> None:
        """Make a part as readable as the bundle: coremltools creates folders that only their owner can read."""
        mode = self.folder.stat().st_mode & 0o777
        for path in (part, *part.rglob("*")):
            found = path.stat().st_mode
            wanted = found | (mode if stat.S_ISDIR(found) else mode & 0o666)
            # FAT has a single mode for all files, and rejects any other.
            if wanted != found:
                path.chmod(stat.S_IMODE(wanted))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A context with an empty temporary folder, which is removed afterwards, or by the next run."""
        with self._emptied(_SCRATCH_FOLDER) as folder:
            yield folder

    @contextmanager
    def temporary_files(self) -> Iterator[None]:
        """A context in which this process creates its temporary files in the workspace, where they are removed with it.

        coremltools makes gigabytes of them, which would stay for good if the process were killed. Conversions on
        several threads take turns.
        """
        with _ONE_AT_A_TIME, self._emptied(_TEMPORARY_FOLDER) as folder, _closed_at_the_end():
            before, tempfile.tempdir = tempfile.tempdir, str(folder)
            try:
                yield
            except RuntimeError:
                # coremltools' C++ does not say why a write failed, and its files are removed now.
                self._is_full = shutil.disk_usage(folder).free < _FULL_BYTES
                raise
            finally:
                tempfile.tempdir = before

    @contextmanager
    def _emptied(self, name: str) -> Iterator[Path]:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        # Files that could not be removed would be published with the bundle.
        shutil.rmtree(folder)

    def publish(self) -> None:
        """Rename the finished folder to the bundle's name; an existing bundle is removed only now.

        Raises OSError if it cannot be renamed; the existing bundle has its name again then.
        """
        old = replaced_folder(self.bundle)
        remove_leftover(old)
        # From here on, an interrupted run is recognised by its manifest (`is_finished`).
        (self.folder / PLAN_FILE).unlink()
        (self.folder / _PARTS_FILE).unlink(missing_ok=True)
        try:
            if self.bundle.exists():
                self.bundle.replace(old)
            self.folder.replace(self.bundle)
        except BaseException:
            # On any exception, also Ctrl-C; the first error is the one to show.
            with contextlib.suppress(OSError):
                if not self.bundle.exists():
                    old.replace(self.bundle)
            raise
        self.close()
        remove_leftover(old)


@contextmanager
def _closed_at_the_end() -> Iterator[None]:
    """A context that, at its end, closes and so removes the named temporary files that this thread has made.

    coremltools leaves one open that cannot be written. Where the error is known, so is the file, which would be missed
    when it is forgotten, with a traceback after the error's line.
    """
    made: list[Any] = []
    make, thread = tempfile.NamedTemporaryFile, threading.get_ident()

    def kept(*arguments: Any, **options: Any) -> Any:
        file = make(*arguments, **options)
        if threading.get_ident() == thread:
            made.append(file)
        return file

    tempfile.NamedTemporaryFile = kept  # type: ignore[assignment]
    try:
        yield
    finally:
        tempfile.NamedTemporaryFile = make  # type: ignore[misc]
        for file in made:
            # Closing flushes, which may fail again.
            with contextlib.suppress(OSError):
                file.close()


def _locked(folder: Path) -> Lock:
    """Create the folder if necessary, and lock it. Raises OSError."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        # Another conversion may have just published it.
        with contextlib.suppress(FileNotFoundError):
            return lock_folder(folder)


def _recorded(path: Path, part: str) -> dict[str, FileRecord]:
    """The records of the part at `path`: one file, or a folder."""
    if path.is_file():
        return {part: record_file(path)}
    files = (file for file in path.rglob("*") if file.is_file())
    return {f"{part}/{file.relative_to(path).as_posix()}": record_file(file) for file in files}


def _intact_parts(folder: Path) -> _Parts:
    """The finished parts that have not changed since. Raises OSError."""
    try:
        parts = _PARTS.validate_json(json_content(folder / _PARTS_FILE))
    except FileNotFoundError:
        # New, or interrupted while it was published, when the manifest lists everything.
        parts = {"": _manifest_files(folder)}
    except ValueError:
        parts = {}
    return {part: files for part, files in parts.items() if _is_intact(folder, files)}


def _manifest_files(folder: Path) -> dict[str, FileRecord]:
    try:
        return dict(Manifest.read(folder).files)
    except BundleError:
        return {}


def _is_intact(folder: Path, files: dict[str, FileRecord]) -> bool:
    try:
        check_files(folder, files, digests=True)
    except BundleError:
        return False
    return True


def _remove_others(folder: Path, files: Mapping[str, FileRecord]) -> None:
    """Remove everything that belongs to no finished part, except files at the root, which are rewritten at the end."""
    for path in sorted(folder.rglob("*"), reverse=True):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.rmdir()
        elif "/" in name and name not in files:
            path.unlink()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
