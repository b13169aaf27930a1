"""Atomic writes: a file appears when it is complete, or not at all. Links are followed.

path                                    effect
missing, or a dangling link             the file, or the link's target, is created by an atomic rename
a file, or a link to one                replaced by an atomic rename, with its mode and owner;
                                        OSError for a read-only file, unless `overwrite`
a named pipe, a character device        the complete content is written to it
a folder, a socket, a block device      OSError
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from voxcpm_constants.errors import InputError, naming_errors
from voxcpm_constants.file_locks import Lock, is_at, try_lock
from voxcpm_constants.user_folders import user_path

_MAX_NAME_BYTES = 200  # bytes of a name within a hidden name; file systems allow 255
_UNSUPPORTED_KINDS = {stat.S_IFDIR: "folder", stat.S_IFSOCK: "socket", stat.S_IFBLK: "block device"}


@contextlib.contextmanager
def atomic_file(path: Path, *, overwrite: bool | None = None) -> Iterator[BinaryIO]:
    """A context with a temp file next to the target of `path`, renamed to it at the end, or removed on any error.

    overwrite: see `replaced_file`.
    """
    target = replaced_file(path, overwrite=overwrite)
    if target is None:
        content = io.BytesIO()
        yield content
        # Blocks until a named pipe has a reader.
        path.write_bytes(content.getbuffer())
        return
    part, file, lock = _open_temp_file(target)
    replaced = False
    try:
        with file:
            file.truncate()  # left by a killed process
            _copy_mode_and_owner(file.fileno(), target)
            yield file
        part.replace(target)
        replaced = True
    finally:
        # After the rename, a file of this name would be another process's.
        if not replaced:
            part.unlink(missing_ok=True)
        lock.release()


def replaced_file(path: Path, *, overwrite: bool | None = None) -> Path | None:
    """The file that writing to `path` creates or replaces, with all links resolved; None for a pipe or a device.

    overwrite: True also replaces a read-only file; None if the user has no such option. Raises OSError.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return Path(os.path.realpath(path))
    if (kind := _UNSUPPORTED_KINDS.get(stat.S_IFMT(mode))) is not None:
        raise OSError(errno.EINVAL, f"it is a {kind}", str(path))
    if not overwrite and not (mode & stat.S_IWUSR and os.access(path, os.W_OK)):
        if (refusal := access_error(path)).errno == errno.EROFS:
            raise refusal
        choice = "; --overwrite replaces it" if overwrite is False else ""
        raise PermissionError(errno.EACCES, f"it exists and is read-only{choice}", str(path))
    return Path(os.path.realpath(path)) if stat.S_ISREG(mode) else None


def access_error(path: Path) -> OSError:
    """The error of writing to a file or folder that `os.access` refuses."""
    code = errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES
    return OSError(code, os.strerror(code), str(path))


def refuse_inputs(output: Path, inputs: Iterable[str | Path | None]) -> None:
    """Raises InputError if an output is also an input, by any name or link; a pipe or device may be both."""
    for given in inputs:
        with contextlib.suppress(OSError):
            same = given is not None and user_path(given).samefile(output)
            if same and (output.is_file() or output.is_dir()):
                raise InputError(f"{output}: this is also an input ({given}); choose another output")


def report_folder(folder: Path, names: Iterable[str], inputs: Iterable[str | Path | None]) -> None:
    """Create a report's folder before the work begins. Raises InputError and OSError if `names` cannot be written."""
    make_folder(folder)
    for path in (folder / name for name in names):
        refuse_inputs(path, inputs)
        replaced_file(path)


def hidden_sibling(path: Path, kind: str) -> Path:
    """A hidden path next to a file, such as `.out.wav.segments`. A long name is shortened."""
    name = path.name
    if len(os.fsencode(name)) > _MAX_NAME_BYTES:
        start = os.fsencode(name)[: _MAX_NAME_BYTES - 17].decode(errors="ignore")
        name = f"{start}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
    return path.with_name(f".{name}.{kind}")


def make_folder(path: Path) -> None:
    """Create a folder and its parents, or the target of a dangling link, if missing. Raises InputError."""
    with naming_errors(f"{path}: the folder cannot be created"):
        Path(os.path.realpath(path)).mkdir(parents=True, exist_ok=True)


def _open_temp_file(path: Path) -> tuple[Path, BinaryIO, Lock]:
    """A temp file, open and locked. It reuses that of a killed process; if that one is in use, it gets another name."""
    part = hidden_sibling(path, "0.part")
    file: BinaryIO | None = None
    try:
        file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "wb+")
    except OSError:
        if not os.path.lexists(part):
            raise
    # Between these calls another process may have finished and renamed it.
    if file is None or not (try_lock(file.fileno()) and is_at(file.fileno(), part)):
        if file is not None:
            file.close()
        part = hidden_sibling(path, f"{secrets.token_hex(8)}.part")
        file = part.open("xb+")
        try_lock(file.fileno())
    # The lock outlives `file`, which is closed before it is renamed.
    return part, file, Lock(os.dup(file.fileno()))


def _copy_mode_and_owner(descriptor: int, target: Path) -> None:
    """Copy the mode of the file to be replaced, and its owner and group if permitted."""
    try:
        earlier = target.stat()
    except FileNotFoundError:
        return
    for owner, group in ((-1, earlier.st_gid), (earlier.st_uid, -1)):
        with contextlib.suppress(OSError):
            os.fchown(descriptor, owner, group)
    if os.fstat(descriptor).st_mode != earlier.st_mode:
        os.fchmod(descriptor, stat.S_IMODE(earlier.st_mode))
