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

from voxcpm_server.errors import check_capacity

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
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._background: deque[asyncio.Future[None]] = deque()
        self._mean_seconds = 1.0

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return sum(map(len, self._queues.values()))

    @property
    def has_requests(self) -> bool:
        """Whether a request waits. Thread-safe."""
        return bool(self._queues)

    @property
    def busy(self) -> int:
        """Number of turns taken."""
        return self._turns - self._free

    async def enter(self, key: str) -> QueueTurn:
        """Wait for a turn. key: the request's owner.

        Raises ApiError with Retry-After immediately if too many requests wait: 429 if this key's, otherwise 503.
        """
        self.check(key)
        try:
            await self._wait(self._queues.setdefault(key, deque()))
        finally:
            if not self._queues.get(key, True):
                del self._queues[key]
        return QueueTurn(self, counted=True)

    async def enter_background(self) -> QueueTurn:
        """Wait for an idle turn. The holder must poll `has_requests` and leave."""
        await self._wait(self._background)
        return QueueTurn(self, counted=False)

    def leave(self, seconds: float | None) -> None:
        """Return a turn. seconds: how long a request held it; None for background work."""
        if seconds is not None:
            self._mean_seconds += _LATEST_SHARE * (seconds - self._mean_seconds)
        self._free += 1
        self._grant_turns()

    def check(self, key: str) -> None:
        """Raises what `enter` would raise, to reject a request before any work."""
        if self._free and not self._queues:
            return
        seconds = math.ceil(self._mean_seconds * (self.waiting + 1) / self._turns)
        seconds = min(max(seconds, 1), _MAX_RETRY_AFTER)
        own = len(self._queues.get(key, ()))
        message = f"too many requests: {{}}{{}} are waiting; try again in {seconds} s"
        check_capacity((self.waiting, self._max_waiting), (own, self._max_per_key), message, seconds)

    async def _wait(self, queue: deque[asyncio.Future[None]]) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(granted)
        self._grant_turns()
        try:
            await granted
        except asyncio.CancelledError:
            if granted in queue:
                queue.remove(granted)
            elif not granted.cancelled():
                # Granted and cancelled at the same time.
                self.leave(None)
            raise

    def _grant_turns(self) -> None:
        """Grant free turns to one key after another, and without requests to background work."""
        while self._free and (self._queues or self._background):
            key = next(iter(self._queues), None)
            queue = self._background if key is None else self._queues.pop(key)
            granted = queue.popleft()
            if queue and key is not None:
                self._queues[key] = queue
            # A cancelled waiter may still be in its queue.
            if not granted.cancelled():
                self._free -= 1
                granted.set_result(None)


class QueueTurn:
    """One of a limited number of concurrent turns to speak."""

    def __init__(self, queue: FairQueue, *, counted: bool) -> None:
        self._queue = queue
        self._started = time.perf_counter()
        self._counted = counted
        self._returned = False

    def leave(self) -> None:
        """Return the turn to the queue. Further calls are no-ops."""
        if not self._returned:
            self._returned = True
            self._queue.leave(time.perf_counter() - self._started if self._counted else None)
