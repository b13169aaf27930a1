"""Waiting for something in another process."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(happened: Callable[[], bool], seconds: float = 90) -> None:
    """Wait until something has happened."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)
