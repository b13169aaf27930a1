"""A bounded queue in front of the step models, fair between keys.

Each key has its own FIFO queue, and keys are served round-robin, so a key with a hundred requests delays another key's
first request by only one turn. Background work, such as a job, gets a turn only while no request waits, and yields as
soon as one does.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

from voxcpm_server.errors import check_places

_MAX_RETRY_AFTER = 300
# Weight of the latest turn in the moving average of durations.
_LATEST_SHARE = 0.2


class FairQueue:
    """Grants up to `turns` concurrent turns, while up to `max_waiting` requests wait.

    max_per_key: maximum waiting requests of one key. Bound to one event loop.
    """

    def __init__(self, turns: int, max_waiting: int, max_per_key: int) -> None:
        self._turns = self._free = turns
        self._max_waiting = max_waiting
        self._max_per_key = max_per_key
        # In round-robin order. None of these queues is empty.
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        self._last: deque[asyncio.Future[None]] = deque()
        self._mean_seconds = 1.0

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return sum(map(len, self._lines.values()))

    @property
    def has_requests(self) -> bool:
        """Whether a request waits. Thread-safe."""
        return bool(self._lines)

    @property
    def busy(self) -> int:
        """Number of turns taken."""
        return self._turns - self._free

    async def enter(self, key: str) -> Turn:
        """Wait for a turn. key: the request's owner.

        Raises ApiError with Retry-After immediately if too many requests wait: 429 if this key's, otherwise 503.
        """
        self.check(key)
        try:
            await self._called(self._lines.setdefault(key, deque()))
        finally:
            if not self._lines.get(key, True):
                del self._lines[key]
        return Turn(self, counted=True)

    async def enter_last(self) -> Turn:
        """Wait for an idle turn. The holder must poll `has_requests` and leave."""
        await self._called(self._last)
        return Turn(self, counted=False)

    def leave(self, seconds: float | None) -> None:
        """Return a turn. seconds: how long a request held it; None for background work."""
        if seconds is not None:
            self._mean_seconds += _LATEST_SHARE * (seconds - self._mean_seconds)
        self._free += 1
        self._call_next()

    def check(self, key: str) -> None:
        """Raises what `enter` would raise, to reject a request before any work."""
        if self._free and not self._lines:
            return
        seconds = math.ceil(self._mean_seconds * (self.waiting + 1) / self._turns)
        seconds = min(max(seconds, 1), _MAX_RETRY_AFTER)
        own = len(self._lines.get(key, ()))
        message = f"too many requests: {{}}{{}} are waiting; try again in {seconds} s"
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
                # Granted and cancelled at the same time.
                self.leave(None)
            raise

    def _call_next(self) -> None:
        """Grant free turns to one key after another, and without requests to background work."""
        while self._free and (self._lines or self._last):
            key = next(iter(self._lines), None)
            line = self._last if key is None else self._lines.pop(key)
            called = line.popleft()
            if line and key is not None:
                self._lines[key] = line
            # A cancelled waiter may still be in its queue.
            if not called.cancelled():
                self._free -= 1
                called.set_result(None)


class Turn:
    """One of a limited number of concurrent turns to speak."""

    def __init__(self, queue: FairQueue, *, counted: bool) -> None:
        self._queue = queue
        self._began = time.perf_counter()
        self._counted = counted
        self._left = False

    def leave(self) -> None:
        """Return the turn to the queue. Further calls are no-ops."""
        if not self._left:
            self._left = True
            self._queue.leave(time.perf_counter() - self._began if self._counted else None)
