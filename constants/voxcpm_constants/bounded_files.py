"""Reading files and pipes from outside as a whole, up to a maximum size."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from voxcpm_constants.bounds import MAX_PIPE_SECONDS, MAX_WHOLE_PIPE_SECONDS

_BLOCK_BYTES = 1 << 20


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of a file or a pipe.

    Raises OSError, with the reason in `strerror`, for more than `max_bytes`, for a pipe without data for
    MAX_PIPE_SECONDS or without an end after MAX_WHOLE_PIPE_SECONDS, and for anything else, such as a device, which may
    be endless.
    """
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb", buffering=0):
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if stat.S_ISFIFO(status.st_mode):
            return _joined(_blocks_of_pipe(descriptor, MAX_PIPE_SECONDS), max_bytes)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is neither a file nor a pipe")
        if status.st_size > max_bytes:
            raise _too_large(max_bytes, status.st_size)
        return _joined(iter(lambda: os.read(descriptor, _BLOCK_BYTES), b""), max_bytes)


def bounded(file: BinaryIO, max_bytes: int) -> bytes:
    """The rest of an open file.

    Raises OSError for more than `max_bytes`, and for a pipe without an end after MAX_WHOLE_PIPE_SECONDS.
    """
    if (descriptor := _pipe_of(file)) is not None:
        return _joined(_blocks_of_pipe(descriptor, MAX_WHOLE_PIPE_SECONDS), max_bytes)
    content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise _too_large(max_bytes)
    return content


def _joined(blocks: Iterator[bytes], max_bytes: int) -> bytes:
    content = bytearray()
    for block in blocks:
        content += block
        if len(content) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(content)


def _pipe_of(file: BinaryIO) -> int | None:
    """The descriptor of a file that is an unread pipe; None for another file."""
    try:
        descriptor = file.fileno()
    except OSError:
        return None
    return descriptor if hasattr(select, "poll") and stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None


def _blocks_of_pipe(descriptor: int, max_silent: float) -> Iterator[bytes]:
    """The blocks of a pipe until its end. A pipe without a writer yet also reads as ended.

    max_silent: timeout in seconds for the next block. Raises TimeoutError.
    """
    end = time.monotonic() + MAX_WHOLE_PIPE_SECONDS
    latest, begun = time.monotonic() + max_silent, False
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while (left := min(latest, end) - time.monotonic()) > 0:
        for _, event in poll.poll(left * 1000):
            if block := os.read(descriptor, _BLOCK_BYTES):
                yield block
                latest, begun = time.monotonic() + max_silent, True
            elif begun or event & select.POLLHUP:
                return
    if latest < end:
        raise TimeoutError(errno.ETIMEDOUT, f"nothing came from the pipe for {max_silent:g} seconds")
    raise TimeoutError(errno.ETIMEDOUT, f"the pipe had not ended after {MAX_WHOLE_PIPE_SECONDS:g} seconds")


def _too_large(max_bytes: int, size: int | None = None) -> OSError:
    found = "more" if size is None else f"{size} bytes"
    return OSError(errno.EFBIG, f"at most {max_bytes} bytes are read, and it has {found}")
