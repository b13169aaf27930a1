"""The folder of an unfinished bundle: finished parts survive interruptions, and the bundle is renamed when complete.

.NAME.partial/
  plan.json      what is converted; another plan starts over
  parts.json     digests of the finished parts, so that a resumed run reuses only unchanged ones
  bundle/        the new bundle
  temporary/     temporary files, and parts being written
  replaced/      the earlier bundle, until the new one has its name
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
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from unittest import mock

from pydantic import TypeAdapter

from voxcpm_constants.errors import BundleError, InputError, os_reason
from voxcpm_constants.file_locks import Lock, lock_folder
from voxcpm_constants.json_files import json_content
from voxcpm_constants.manifest import FileRecord, check_files, record_file
from voxcpm_conversion.replacing import BUNDLE, PARTS_FILE, PLAN_FILE, REPLACED, TEMPORARY, partial_folder

_FILE_ERROR = re.compile(
    r"(filesystem error|\[MIL FileWriter\]): (?P<reason>[^\[\n]*[^\[\n\s])"
    r"|(?P<lost>A valid manifest does not exist|Unable to read file|Input stream is not valid)\b"
)
"""Messages of coremltools' C++, up to the paths, for a file that cannot be written or read back."""
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_FULL_BYTES = 1 << 20
"""If a write fails with less free space than this, the disk is full."""
_TEMPDIR_LOCK = threading.Lock()
"""Held while `tempfile.tempdir` is replaced, which affects the whole process."""
_Parts = dict[str, dict[str, FileRecord]]
"""File records of the finished parts; parts and files by paths relative to the bundle."""
_PARTS: TypeAdapter[_Parts] = TypeAdapter(_Parts)


class Workspace:
    """The folder `.NAME.partial` next to the bundle NAME, locked until `close` or the end of the context.

    folder: the new bundle in it. `bundle_folder` has checked that existing content is not the user's.
    """

    def __init__(self, bundle: Path, plan: dict[str, object]) -> None:
        """Resume the workspace of the same plan, or start a new one; changed parts are removed.

        Raises InputError if it cannot be written, or another conversion is writing the same bundle.
        """
        self.bundle, self._root = bundle, partial_folder(bundle)
        self.folder, self._temporary = self._root / BUNDLE, self._root / TEMPORARY
        text = json.dumps(plan, indent=1, sort_keys=True)
        plan_file = self._root / PLAN_FILE
        try:
            self._lock = _locked(self._root)
            self._restore_earlier()
            same = plan_file.is_file() and plan_file.read_text(encoding="utf-8") == text
            for entry in self._root.iterdir():
                if entry.name not in ((PLAN_FILE, PARTS_FILE, BUNDLE) if same else (PLAN_FILE,)):
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            plan_file.write_text(text, encoding="utf-8")
            self.folder.mkdir(exist_ok=True)
            self._temporary.mkdir()
            self._parts = _intact_parts(self._root / PARTS_FILE, self.folder)
            _remove_others(self.folder, self.files())
        except BlockingIOError:
            raise InputError(
                f"{bundle}: another conversion is writing this bundle; wait for it, or choose another output"
            ) from None
        except OSError as error:
            raise InputError(f"{bundle.parent}: cannot write a bundle there ({os_reason(error)})") from None

    def close(self) -> None:
        """Unlock the folder. Finished parts stay for the next run."""
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._lock.release()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.close()
        # Unlike a failed open, a failed write does not name its file.
        if isinstance(error, OSError) and error.filename is None and error.errno in _OF_THE_DISK:
            raise self._not_written(os_reason(error)) from error

    def _not_written(self, reason: str) -> InputError:
        return InputError(f"{self.bundle.parent}: cannot be written ({reason}); run the same command again")

    def has(self, part: str) -> bool:
        """Whether a part, by its path relative to the bundle, is finished."""
        return part in self._parts

    def files(self) -> dict[str, FileRecord]:
        """The records of all files of the finished parts, by path relative to the bundle."""
        records = {name: record for files in self._parts.values() for name, record in files.items()}
        return {name: records[name] for name in sorted(records, key=PurePosixPath)}

    def add(self, part: str, write: Callable[[Path], object]) -> None:
        """Add a file or folder atomically: `write(path)` to a temporary path, record its digests, rename it."""
        final = self.folder / part
        # Same name: coremltools infers the format from the suffix.
        unfinished = self._temporary / final.name
        final.parent.mkdir(parents=True, exist_ok=True)
        write(unfinished)
        self._match_permissions(unfinished)
        self._parts[part] = _recorded(unfinished, part)
        # Before the rename: a part without a record would be rebuilt.
        written = self._temporary / PARTS_FILE
        written.write_bytes(_PARTS.dump_json(self._parts, indent=1))
        written.replace(self._root / PARTS_FILE)
        unfinished.replace(final)

    def _match_permissions(self, part: Path) -> None:
        """Make a part as readable as the bundle: coremltools creates folders that only the owner can read."""
        mode = self.folder.stat().st_mode & 0o777
        for path in (part, *part.rglob("*")):
            found = path.stat().st_mode
            target = found | (mode if stat.S_ISDIR(found) else mode & 0o666)
            # FAT has a single mode for all files, and rejects any other.
            if target != found:
                path.chmod(stat.S_IMODE(target))

    @contextmanager
    def temporary_files(self) -> Iterator[Path]:
        """Redirect this process's temporary files into the workspace; yields their folder.

        coremltools writes gigabytes of them, which would be left behind if the process were killed. Raises InputError
        if coremltools cannot write a file.
        """
        with _TEMPDIR_LOCK, mock.patch.object(tempfile, "tempdir", str(self._temporary)):
            try:
                yield self._temporary
            except Exception as error:
                # A file that is still open in a frame would complain when it is closed after its deletion.
                traceback.clear_frames(error.__traceback__)
                if isinstance(error, RuntimeError):
                    # coremltools' C++ does not always report why a write failed.
                    if shutil.disk_usage(self._root).free < _FULL_BYTES:
                        raise self._not_written("no space left on device") from error
                    if found := _FILE_ERROR.match(str(error)):
                        raise self._not_written(found["reason"] or found["lost"]) from error
                raise
            finally:
                shutil.rmtree(self._temporary, ignore_errors=True)
                self._temporary.mkdir(exist_ok=True)

    def publish(self) -> None:
        """Rename the finished folder to the bundle's name, then delete an existing bundle.

        Raises OSError if the rename fails; the existing bundle is then restored.
        """
        old = self._root / REPLACED
        try:
            if self.bundle.exists():
                self.bundle.replace(old)
            self.folder.replace(self.bundle)
        except BaseException:
            # On any exception, including Ctrl-C; the first error is the one to report.
            with contextlib.suppress(OSError):
                self._restore_earlier()
            raise
        # Rename it first: only a complete bundle may ever be restored.
        if old.exists():
            old.replace(self._temporary / REPLACED)
        shutil.rmtree(self._root, ignore_errors=True)
        self.close()

    def _restore_earlier(self) -> None:
        """Rename an earlier bundle back, unless the new one has its name."""
        if (self._root / REPLACED).exists() and not self.bundle.exists():
            (self._root / REPLACED).replace(self.bundle)


def _locked(folder: Path) -> Lock:
    """Create the folder if necessary, and lock it. Raises OSError."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        # Another conversion may have just removed it.
        with contextlib.suppress(FileNotFoundError):
            return lock_folder(folder)


def _recorded(path: Path, part: str) -> dict[str, FileRecord]:
    """File records of the part at `path`: a file or a folder."""
    if path.is_file():
        return {part: record_file(path)}
    files = (file for file in path.rglob("*") if file.is_file())
    return {f"{part}/{file.relative_to(path).as_posix()}": record_file(file) for file in files}


def _intact_parts(parts_file: Path, bundle: Path) -> _Parts:
    """Finished parts whose files are unchanged. Raises OSError."""
    try:
        parts = _PARTS.validate_json(json_content(parts_file))
    except (FileNotFoundError, ValueError):
        return {}
    intact = {}
    for part, files in parts.items():
        with contextlib.suppress(BundleError):
            check_files(bundle, files, digests=True)
            intact[part] = files
    return intact


def _remove_others(folder: Path, files: Mapping[str, FileRecord]) -> None:
    """Remove everything that does not belong to a finished part."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.rmdir()
        elif path.relative_to(folder).as_posix() not in files:
            path.unlink()
