"""Memory that is returned to the operating system when it is freed."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap

import numpy as np
from numpy.typing import DTypeLike

# Of an array with its own mapping; smaller ones would waste much of their last page.
_MIN_MAPPED_BYTES = 1 << 16


def return_freed_memory() -> None:
    """Return freed memory to the operating system; a no-op with other allocators than glibc's.

    glibc would keep it for later: 0.4 GB after loading VoxCPM 1.5 in int8, 1.4 GB after closing it.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def mapped_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array of zeros whose memory is returned as soon as nothing refers to it.

    KV caches live as long as a call. On glibc's heap they fragment the memory, so that a server keeps growing.
    """
    count = math.prod(shape)
    size = count * np.dtype(dtype).itemsize
    if size < _MIN_MAPPED_BYTES:
        return np.zeros(shape, dtype)
    # Not shared with forked processes.
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(mapped, dtype, count).reshape(shape)
