"""Files that a command writes: whole or not at all, through links, and never in place of what is not a file.

what has the name                       what is done
nothing, or a link to nothing           the file, or the link's target, appears when it is complete
a file, or a link to one                it is replaced when the new one is complete, with its mode and owner;
                                        one that is read-only is refused, unless `overwrite`
a named pipe or a character device,     the complete content is written into it
/dev/stdout, /dev/fd/N
a folder, a socket, a block device      OSError
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from voxcpm_constants.errors import InputError, os_reason
from voxcpm_constants.file_locks import Lock, is_at, try_lock
from voxcpm_constants.user_folders import user_path

_PART = "part"
_TOKEN_BYTES = 8
_PART_NAME = re.compile(rf"\.(.+)\.(?:\d|[0-9a-f]{{{2 * _TOKEN_BYTES}}}|\d+-\d+)\.{_PART}", re.DOTALL)
"""What `whole_file` calls a file that it has not finished: the name with a token. Two numbers: an earlier release's."""
_LONGEST_NAME = 200
"""Bytes of a name that is repeated in a hidden one; file systems take 255."""
_LOOKED_AT = 4
"""Parts of one file that a later write looks at: as many as were written at the same time, and more than usual."""
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")
_MAX_LINKS = 40
"""Links that lead to each other; the system follows as many."""
_REFUSED_KINDS = {stat.S_IFDIR: "folder", stat.S_IFSOCK: "socket", stat.S_IFBLK: "block device"}


@contextlib.contextmanager
def whole_file(path: Path, *, keep: bool = True, overwrite: bool | None = None) -> Iterator[BinaryIO]:
    """Open a temp file beside what `path` leads to, renamed to it at the end; any error, or Ctrl-C, removes it.

    While it is written it is locked. One that a killed process left has no lock, and is overwritten or removed.

    keep: False always removes it, to test whether `path` can be written. overwrite: see `replaced_file`. Raises OSError
    if it cannot be written.
    """
    target = replaced_file(path, overwrite=overwrite)
    if target is None:
        content = io.BytesIO()
        yield content
        if keep:
            with _stream(path) as stream:
                stream.write(content.getbuffer())
        return
    part, file, lock = _opened(target)
    kept = False
    try:
        with file:
            _take_mode_and_owner(file.fileno(), target)
            yield file
        if keep:
            part.replace(target)
            kept = True
    finally:
        # Once it has been renamed, a file of this name is another process's.
        if not kept:
            part.unlink(missing_ok=True)
        lock.release()
        for number in range(_LOOKED_AT):
            remove_leftover(_part(target, str(number)))


def replaced_file(path: Path, *, overwrite: bool | None = None) -> Path | None:
    """The file that is made or replaced when `path` is written, with all links followed; None for a stream.

    overwrite: True replaces a read-only file, too; None where the caller's user has no such choice. Raises OSError for
    what can be neither replaced nor written into, and for a file that is read-only: without the owner's permission to
    write, which root needs here as well.
    """
    if (number := _descriptor(path)) is not None:
        os.fstat(number)
        return None
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return Path(os.path.realpath(path))
    if (kind := _REFUSED_KINDS.get(stat.S_IFMT(mode))) is not None:
        raise OSError(errno.EINVAL, f"it is a {kind}", str(path))
    if not overwrite and not (mode & stat.S_IWUSR and os.access(path, os.W_OK)):
        choice = "; --overwrite replaces it" if overwrite is False else ""
        raise PermissionError(errno.EACCES, f"it exists and is read-only{choice}", str(path))
    return Path(os.path.realpath(path)) if stat.S_ISREG(mode) else None


def refuse_inputs(output: Path, inputs: Iterable[str | Path | None]) -> None:
    """Raises InputError if an output is also one of the inputs, by whatever name or link.

    inputs: files and folders that are read for this output; None for one that was not given. A pipe or a device may be
    both.
    """
    for given in inputs:
        with contextlib.suppress(OSError):
            same = given is not None and user_path(given).samefile(output)
            if same and (output.is_file() or output.is_dir()):
                raise InputError(f"{output}: this is also an input ({given}); choose another output")


def report_folder(folder: Path, names: Iterable[str], inputs: Iterable[str | Path | None]) -> None:
    """Make a report's folder before the work that is reported. names: of the files that are to be written there.

    Raises InputError and OSError if one of them could not be written, or is one of the `inputs`.
    """
    files = [folder / name for name in names]
    for path in (folder, *files):
        refuse_inputs(path, inputs)
    make_folder(folder)
    for path in files:
        replaced_file(path)


def hidden_beside(path: Path, kind: str) -> Path:
    """The path of something hidden beside a file, such as `.out.wav.segments`. A long name is shortened."""
    name = path.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        start = os.fsencode(name)[: _LONGEST_NAME - 17].decode(errors="ignore")
        name = f"{start}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
    return path.with_name(f".{name}.{kind}")


def make_folder(path: Path) -> None:
    """Make a folder and those above it, if they are missing, or the target of a link to nothing. Raises InputError."""
    try:
        Path(os.path.realpath(path)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: the folder cannot be made ({os_reason(error)})") from None


def remove_leftover(part: Path) -> None:
    """Remove an unfinished file, unless a process is writing it. Raises nothing."""
    if not os.path.lexists(part):
        return
    with contextlib.suppress(OSError), part.open("rb") as file:
        # It may have been renamed since it was opened, and the name may be another's.
        if try_lock(file.fileno()) and is_at(file.fileno(), part):
            part.unlink()


def remove_leftovers(folder: Path, written: re.Pattern[str]) -> None:
    """Remove the unfinished files of a folder that no process is writing. Raises nothing.

    written: matches the whole names of the files that this program writes there; what else looks unfinished, such as a
    download, is somebody else's.
    """
    for part in folder.glob(f".*.{_PART}"):
        own = _PART_NAME.fullmatch(part.name)
        if own and written.fullmatch(own[1]) and part.is_file() and not part.is_symlink():
            remove_leftover(part)


def _part(path: Path, token: str) -> Path:
    return hidden_beside(path, f"{token}.{_PART}")


def _opened(path: Path) -> tuple[Path, BinaryIO, Lock]:
    """A new temporary file, open and locked."""
    number = 0
    while True:
        part = _part(path, str(number))
        try:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError:
            if not os.path.lexists(part):
                raise
            # Another user's.
            number += 1
            continue
        file = os.fdopen(descriptor, "wb+")
        locked = try_lock(file.fileno())
        if locked and is_at(file.fileno(), part):
            try:
                file.truncate()
            except OSError:
                part.unlink(missing_ok=True)
                file.close()
                raise
            break
        file.close()
        if locked is None:
            part = _part(path, secrets.token_hex(_TOKEN_BYTES))
            file = part.open("xb+")
            break
        # Another writes it; or it has been renamed since it was opened, so that its name is free again.
        number += not locked
    # The lock outlives `file`, which is closed before it is renamed.
    return part, file, Lock(os.dup(file.fileno()))


def _take_mode_and_owner(descriptor: int, target: Path) -> None:
    """Give a new file the mode of the file that it will replace, and its owner and group where the system allows it."""
    try:
        earlier = target.stat()
    except FileNotFoundError:
        return
    own = os.fstat(descriptor)
    for owner, group in ((-1, earlier.st_gid), (earlier.st_uid, -1)):
        if owner not in (-1, own.st_uid) or group not in (-1, own.st_gid):
            with contextlib.suppress(OSError):
                os.fchown(descriptor, owner, group)
    if own.st_mode != earlier.st_mode:
        os.fchmod(descriptor, stat.S_IMODE(earlier.st_mode))


def _descriptor(path: Path) -> int | None:
    """The number of an open file that a path such as /dev/stdout stands for, also through links; None for others."""
    for _ in range(_MAX_LINKS):
        path = Path(os.path.abspath(path))  # noqa: PTH100 - without following links
        if found := _DESCRIPTOR.fullmatch(str(path)):
            return int(found[1])
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def _stream(path: Path) -> BinaryIO:
    """A pipe or a device, open for writing: waits until a named pipe has a reader."""
    number = _descriptor(path)
    return path.open("wb") if number is None else os.fdopen(os.dup(number), "wb")
