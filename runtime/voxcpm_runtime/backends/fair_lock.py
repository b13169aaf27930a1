"""A lock that threads get in the order in which they come."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

_LOOK_SECONDS = 0.02
"""How often a thread that waits looks whether it still wants the lock."""


class FairLock:
    """A lock for so many threads at a time as it has places; who has waited longest is next.

    Python's own locks may be taken again and again by the thread that has just released them, while others wait.
    """

    def __init__(self, places: int = 1) -> None:
        self._free = places
        self._guard = threading.Lock()
        self._line: deque[threading.Lock] = deque()

    @contextlib.contextmanager
    def held(self, check: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold the lock. check: called while a thread waits for it, and ends the waiting by what it raises."""
        self._take(check)
        try:
            yield
        finally:
            self._release()

    @contextlib.contextmanager
    def held_if_free(self) -> Iterator[bool]:
        """Hold the lock, if it has a place: whether it is held."""
        with self._guard:
            taken = self._free > 0
            self._free -= taken
        try:
            yield taken
        finally:
            if taken:
                self._release()

    def _take(self, check: Callable[[], None] | None) -> None:
        with self._guard:
            if self._free:
                self._free -= 1
                return
            called = threading.Lock()
            called.acquire()
            self._line.append(called)
        try:
            if check is None:
                called.acquire()
                return
            while not called.acquire(timeout=_LOOK_SECONDS):
                check()
        except BaseException:
            with self._guard:
                given = called not in self._line
                if not given:
                    self._line.remove(called)
            if given:
                self._release()
            raise

    def _release(self) -> None:
        with self._guard:
            if self._line:
                self._line.popleft().release()
            else:
                self._free += 1
