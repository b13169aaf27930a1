"""Locks on files and folders between processes. The system releases them when a process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path


class Lock:
    """A lock that was taken; it ends with `release`, with this object, or with the process."""

    def __init__(self, descriptor: int) -> None:
        """Make one of an open file's descriptor, which it closes."""
        self._close = weakref.finalize(self, os.close, descriptor)

    def release(self) -> None:
        """Release the lock. Releasing again does nothing."""
        self._close()


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file or folder: True if it is ours now, False if another has it, None where there are no locks.

    Another opening of the same file in this process counts as another.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # Some network file systems have none.
        return None
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file or folder still lies at a path: another process may have moved or removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def lock_folder(folder: Path) -> Lock:
    """Lock a folder that exists.

    Raises BlockingIOError if another has locked it, FileNotFoundError if it is not there (any more), and OSError for a
    link: whoever waits for a folder to be there would wait for ever.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    lock = Lock(descriptor)
    if try_lock(descriptor) is False:
        lock.release()
        raise BlockingIOError(f"{folder}: another process works there")
    if not is_at(descriptor, folder):
        lock.release()
        raise FileNotFoundError(f"{folder}: no such folder")
    return lock
