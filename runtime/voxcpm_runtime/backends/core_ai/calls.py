"""Calls of Core AI's coroutines from any thread, and their end before Python's.

Core AI answers from threads of its own, which call into Python. Should one still do so while the interpreter ends,
Python ends that thread, and for that Swift ends the process. So the interpreter waits for these threads.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from voxcpm_constants.errors import BundleError

_LONGEST_WAIT = 2.0
"""Seconds that the interpreter waits at most for threads that have delivered their result."""
_LOOK_SECONDS, _IDLE_LOOKS = 0.002, 5
"""It has waited long enough when they were idle at so many looks in turn, so far apart."""
_TASKS = Path("/proc/self/task")


def awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine of Core AI. Raises what it raises, and BundleError when the interpreter is ending.

    An interruption by Ctrl-C arrives when the coroutine has ended: until then Core AI writes into the caller's arrays.
    """
    calls = _calls()
    future = calls.begun(coroutine)
    try:
        return future.result()
    except BaseException:
        wait([future])
        raise


class _Calls:
    """An event loop in a thread of its own, and the coroutines that run on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pending: set[Future[Any]] = set()
        self._ending = False
        self._changing = threading.Lock()
        threading.Thread(target=self._loop.run_forever, name="core-ai", daemon=True).start()
        atexit.register(self._end)

    def begun(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        with self._changing:
            if self._ending:
                coroutine.close()
                raise BundleError("Core AI cannot be called any more: Python is ending")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def _end(self) -> None:
        with self._changing:
            self._ending = True
        wait(self._pending.copy())
        # Core AI's threads have delivered the last results, and give up what they hold of Python's.
        deadline, idle = time.monotonic() + _LONGEST_WAIT, 0
        while idle < _IDLE_LOOKS and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            idle = 0 if _is_busy() else idle + 1


def _is_busy() -> bool:
    """Whether a thread that Python did not start is inside Python or, where the system tells, at work at all."""
    own = list(threading.enumerate())
    inside = sys._current_frames().keys() - {thread.ident for thread in own}  # noqa: SLF001 - a documented function
    known = {str(thread.native_id) for thread in own}
    return bool(inside) or any(task.name not in known and _runs(task) for task in _TASKS.glob("*"))


def _runs(task: Path) -> bool:
    """Whether a thread of this process runs or waits for a processor (Linux)."""
    try:
        # The name stands in brackets, and may have some itself.
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:  # it has ended
        return False


@functools.cache
def _calls() -> _Calls:
    return _Calls()
