"""Waiting for something in another process or thread."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def until(happened: Callable[[], Found], seconds: float = 90) -> Found:
    """Poll `happened` until it returns a true value, and return that; fails after a timeout."""
    end = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < end, f"it did not happen within {seconds:g} s"
        time.sleep(0.005)
    return found
