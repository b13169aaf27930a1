"""A bounded queue in front of the step models, fair between keys.

Each key has its own line. A free turn goes to the next line, so a key with a hundred requests delays another key's
first request by one turn only. Work that can wait, such as a job, is in the last line: it is called when all others are
empty, and yields as soon as one is not.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

from voxcpm_server.errors import check_places

_MAX_RETRY_AFTER = 300
# Share of the latest turn in the mean duration of turns.
_LATEST_SHARE = 0.2


class FairQueue:
    """Gives `turns` requests a turn at the same time, while at most `max_waiting` wait.

    max_per_key: requests of one key that may wait. It belongs to one event loop.
    """

    def __init__(self, turns: int, max_waiting: int, max_per_key: int) -> None:
        self._turns = self._free = turns
        self._max_waiting = max_waiting
        self._max_per_key = max_per_key
        # In the order of their next calls. No line is empty.
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        self._last: deque[asyncio.Future[None]] = deque()
        self._mean_seconds = 1.0

    @property
    def waiting(self) -> int:
        """Waiting requests."""
        return sum(map(len, self._lines.values()))

    @property
    def has_requests(self) -> bool:
        """Whether a request waits. Any thread may ask."""
        return bool(self._lines)

    @property
    def busy(self) -> int:
        """Turns that are taken."""
        return self._turns - self._free

    async def enter(self, key: str) -> Turn:
        """Wait for a turn. key: whose request it is.

        Raises ApiError with Retry-After at once if too many requests wait: 429 if they are this key's, otherwise 503.
        """
        self.check(key)
        try:
            await self._called(self._lines.setdefault(key, deque()))
        finally:
            if not self._lines.get(key, True):
                del self._lines[key]
        return Turn(self, counted=True)

    async def enter_last(self) -> Turn:
        """Wait for an idle turn. Its holder polls `has_requests`, and leaves."""
        await self._called(self._last)
        return Turn(self, counted=False)

    def leave(self, seconds: float | None) -> None:
        """Take a turn back. seconds: how long a request had it."""
        if seconds is not None:
            self._mean_seconds += _LATEST_SHARE * (seconds - self._mean_seconds)
        self._free += 1
        self._call_next()

    def check(self, key: str) -> None:
        """Raises what `enter` would raise, so that a request is refused before any work."""
        if self._free and not self._lines:
            return
        seconds = math.ceil(self._mean_seconds * (self.waiting + 1) / self._turns)
        seconds = min(max(seconds, 1), _MAX_RETRY_AFTER)
        own = len(self._lines.get(key, ()))
        message = f"{{}} requests{{}} are waiting already, the most that may; try again in {seconds} s"
        check_places((self.waiting, self._max_waiting), (own, self._max_per_key), message, seconds)

    async def _called(self, line: deque[asyncio.Future[None]]) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(called)
        self._call_next()
        try:
            await called
        except asyncio.CancelledError:
            if called in line:
                line.remove(called)
            elif not called.cancelled():
                # It was called at the moment of its cancellation.
                self.leave(None)
            raise

    def _call_next(self) -> None:
        """Give free turns to the first request of one line after another; without requests, to the last line."""
        while self._free and (self._lines or self._last):
            key = next(iter(self._lines), None)
            line = self._last if key is None else self._lines.pop(key)
            called = line.popleft()
            if line and key is not None:
                self._lines[key] = line
            # One that has been cancelled has not left its line yet.
            if not called.cancelled():
                self._free -= 1
                called.set_result(None)


class Turn:
    """The right to speak, which a bounded number of texts have at the same time; `leave` passes it on."""

    def __init__(self, queue: FairQueue, *, counted: bool) -> None:
        self._queue = queue
        self._began = time.perf_counter()
        self._counted = counted
        self._left = False

    def leave(self) -> None:
        """Let the next request in. Further calls are no-ops."""
        if not self._left:
            self._left = True
            self._queue.leave(time.perf_counter() - self._began if self._counted else None)
