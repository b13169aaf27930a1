"""Ctrl-C as a token that a generation is asked to watch."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from voxcpm_runtime.speech.cancellation import CancelToken


@contextlib.contextmanager
def interruptible() -> Iterator[CancelToken]:
    """The first Ctrl-C cancels the token, so that what was done can be kept; a second one ends the command at once."""
    token = CancelToken()
    if threading.current_thread() is not threading.main_thread():
        yield token
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        if token.cancelled:
            signal.default_int_handler(number, frame)
        token.cancel()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield token
    finally:
        signal.signal(signal.SIGINT, before)
