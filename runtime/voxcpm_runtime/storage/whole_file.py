"""Files that appear only when they are complete."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from voxcpm_constants.errors import InputError, os_reason
from voxcpm_constants.file_locks import Lock, is_at, try_lock

_PART = "part"
_TOKEN_BYTES = 8
_PART_NAME = re.compile(rf"\.(.+)\.(?:\d|[0-9a-f]{{{2 * _TOKEN_BYTES}}}|\d+-\d+)\.{_PART}", re.DOTALL)
"""What `whole_file` calls a file that it has not finished: the name with a token. Two numbers: an earlier release's."""
_LONGEST_NAME = 200
"""Bytes of a name that is repeated in a hidden one; file systems take 255."""
_LOOKED_AT = 4
"""Parts of one file that a later write looks at: as many as were written at the same time, and more than usual."""


@contextlib.contextmanager
def whole_file(path: Path, *, keep: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`, renamed to `path` at the end; any error, or Ctrl-C, removes it.

    While it is written it is locked. One that a killed process left has no lock, and is overwritten or removed.

    keep: False always removes it, to test whether `path` can be written. Raises OSError if it cannot.
    """
    part, file, lock = _opened(path)
    kept = False
    try:
        with file:
            yield file
        if keep:
            part.replace(path)
            kept = True
    finally:
        # Once it has been renamed, a file of this name is another process's.
        if not kept:
            part.unlink(missing_ok=True)
        lock.release()
        for number in range(_LOOKED_AT):
            remove_leftover(_part(path, str(number)))


def hidden_beside(path: Path, kind: str) -> Path:
    """The path of something hidden beside a file, such as `.out.wav.segments`. A long name is shortened."""
    name = path.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        start = os.fsencode(name)[: _LONGEST_NAME - 17].decode(errors="ignore")
        name = f"{start}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
    return path.with_name(f".{name}.{kind}")


def make_folder(path: Path) -> None:
    """Make a folder and those above it, if they are missing. Raises InputError if that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
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
