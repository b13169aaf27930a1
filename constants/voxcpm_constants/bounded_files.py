"""Reading files and pipes from outside as a whole, up to a maximum size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of a file or a pipe.

    Raises OSError, with the reason in `strerror`, for more than `max_bytes`, and for a device, which may be endless.
    """
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
            raise OSError(errno.EINVAL, "it is neither a file nor a pipe")
        if found.st_size > max_bytes:
            raise _too_large(max_bytes, f"{found.st_size} bytes")
        return bounded(file, max_bytes)


def bounded(file: BinaryIO, max_bytes: int) -> bytes:
    """The rest of an open file. Raises OSError for more than `max_bytes`."""
    content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise _too_large(max_bytes, "more")
    return content


def _too_large(max_bytes: int, found: str) -> OSError:
    return OSError(errno.EFBIG, f"at most {max_bytes} bytes are read, and it has {found}")
