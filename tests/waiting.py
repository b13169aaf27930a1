"""Waiting for something in another process or thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def until(happened: Callable[[], Found], seconds: float = 90) -> Found:
    """What is there once something has happened."""
    end = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found
