"""Inter-process locks on files and folders, which the system releases when a process ends."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path


class Lock:
    """A lock, until `release`, garbage collection or the end of the process. descriptor: of the locked file."""

    def __init__(self, descriptor: int) -> None:
        self.release = weakref.finalize(self, os.close, descriptor)
        """release(): closes the descriptor. A second call is a no-op."""


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file or folder: True if locked, False if it is locked elsewhere, None if locks are not supported.

    A second descriptor of the same file in this process counts as elsewhere.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # Some network file systems do not support locks.
        return None
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file or folder is still at a path: another process may have moved or removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def lock_folder(folder: Path) -> Lock:
    """Lock an existing folder.

    Raises BlockingIOError if it is locked, FileNotFoundError if it is missing, and OSError for a link.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    lock = Lock(descriptor)
    if try_lock(descriptor) is False:
        lock.release()
        raise BlockingIOError(f"{folder}: another process is using it")
    if not is_at(descriptor, folder):
        lock.release()
        raise FileNotFoundError(f"{folder}: no such folder")
    return lock
