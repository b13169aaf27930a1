"""Ctrl-C as a `CancelToken`."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from voxcpm_runtime.speech.cancellation import CancelToken


@contextlib.contextmanager
def interruptible(token: CancelToken) -> Iterator[None]:
    """While open, the first Ctrl-C cancels the token, so that finished work can be saved; a second one interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        if token.cancelled:
            signal.default_int_handler(number, frame)
        token.cancel()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
