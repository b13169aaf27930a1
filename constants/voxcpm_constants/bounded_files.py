"""Reading a file from outside as a whole, up to a bound, from a regular file or a pipe."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from pathlib import Path
from typing import BinaryIO

from voxcpm_constants.bounds import MOST_PIPE_SECONDS

_BLOCK_BYTES = 1 << 20


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """The content of a file, or all that comes from a pipe.

    Raises OSError, whose `strerror` says why: more than `most_bytes`, a pipe from which nothing comes for
    MOST_PIPE_SECONDS, and what is neither file nor pipe, such as a device, which may have no end.
    """
    # Without O_NONBLOCK, opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb", buffering=0):
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if stat.S_ISREG(status.st_mode):
            if status.st_size > most_bytes:
                raise _too_large(most_bytes, status.st_size)
        elif not stat.S_ISFIFO(status.st_mode):
            raise OSError(errno.EINVAL, "it is neither a file nor a pipe")
        content = bytearray()
        while block := _block(descriptor, status.st_mode, begun=bool(content)):
            content += block
            if len(content) > most_bytes:
                raise _too_large(most_bytes)
        return bytes(content)


def bounded(file: BinaryIO, most_bytes: int) -> bytes:
    """All that an open file has left. Raises OSError if that is more than `most_bytes`."""
    content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise _too_large(most_bytes)
    return content


def _block(descriptor: int, mode: int, *, begun: bool) -> bytes:
    """The next bytes; empty at the end. A pipe that nobody has opened for writing yet seems to be at its end, too."""
    if stat.S_ISREG(mode):
        return os.read(descriptor, _BLOCK_BYTES)
    latest = time.monotonic() + MOST_PIPE_SECONDS
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while (left := latest - time.monotonic()) > 0:
        for _, event in poll.poll(left * 1000):
            if block := os.read(descriptor, _BLOCK_BYTES):
                return block
            if begun or event & select.POLLHUP:
                return b""
    raise TimeoutError(errno.ETIMEDOUT, f"nothing came from the pipe for {MOST_PIPE_SECONDS:g} seconds")


def _too_large(most_bytes: int, size: int | None = None) -> OSError:
    found = "more" if size is None else f"{size} bytes"
    return OSError(errno.EFBIG, f"at most {most_bytes} bytes are read, and it has {found}")
