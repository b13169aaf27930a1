"""A bounded queue in front of the step models, fair between keys.

Each key has its own line. A free turn goes to the next line, so a key with a hundred requests delays another key's
first request by one turn only. Work that can wait, such as a job, is in the last line: it is called when all others are
empty, and yields as soon as one is not.
"""

# ruff: noqa: SLF001 - queues and turns know each other

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from voxcpm_server.errors import ApiError

_MAX_RETRY_AFTER = 300
# Share of the latest turn in the mean duration of turns.
_LATEST_SHARE = 0.2


class Turn:
    """The right to speak, which a bounded number of texts have at the same time; `leave` passes it on."""

    def __init__(self, queue: FairQueue, *, counted: bool = True) -> None:
        self._queue = queue
        self._began = time.perf_counter()
        self._counted = counted
        self._left = False

    @property
    def is_wanted(self) -> bool:
        """Whether a request waits for this turn. Any thread may ask."""
        return bool(self._queue._lines)

    def leave(self) -> None:
        """Let the next request in. Further calls are no-ops."""
        if not self._left:
            self._left = True
            seconds = time.perf_counter() - self._began if self._counted else None
            self._queue._leave(seconds)


class FairQueue:
    """Gives `turns` requests a turn at the same time, while at most `max_waiting` wait.

    max_per_key: requests of one key that may wait. It belongs to one event loop.
    """

    def __init__(self, turns: int, max_waiting: int, max_per_key: int) -> None:
        self._free = turns
        self._turns = turns
        self._max_waiting = max_waiting
        self._max_per_key = max_per_key
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._last: deque[asyncio.Future[None]] = deque()
        # Waiting requests of each key.
        self._waiting: Counter[str] = Counter()
        self._mean_seconds = 1.0

    @property
    def waiting(self) -> int:
        """Waiting requests."""
        return sum(self._waiting.values())

    @property
    def busy(self) -> int:
        """Turns that are taken."""
        return self._turns - self._free

    async def enter(self, key: str) -> Turn:
        """Wait for a turn. key: whose request it is.

        Raises ApiError with Retry-After at once if too many requests wait: 429 if they are this key's, otherwise 503.
        """
        self.check(key)
        if self._has_room:
            self._free -= 1
            return Turn(self)
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(key, deque()).append(called)
        self._waiting[key] += 1
        try:
            await _called(called, self._call_next)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
        return Turn(self)

    async def enter_last(self) -> Turn:
        """Wait for an idle turn. Its holder polls `is_wanted`, and leaves."""
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last.append(called)
        self._call_last()
        await _called(called, self._call_next)
        return Turn(self, counted=False)

    def check(self, key: str) -> None:
        """Raises what `enter` would raise, so that a request is refused before any work."""
        if self._has_room:
            return
        if self.waiting >= self._max_waiting:
            raise self._refusal(503, f"{self.waiting} requests are waiting already, the most that may")
        own = self._waiting[key]
        if own >= self._max_per_key:
            raise self._refusal(429, f"{own} requests of this key are waiting already, the most that may")

    @property
    def _has_room(self) -> bool:
        return self._free > 0 and not self._lines

    def _refusal(self, status: int, what: str) -> ApiError:
        seconds = math.ceil(self._mean_seconds * (self.waiting + 1) / self._turns)
        seconds = min(max(seconds, 1), _MAX_RETRY_AFTER)
        return ApiError(status, f"{what}; try again in {seconds} s", headers={"Retry-After": str(seconds)})

    def _leave(self, seconds: float | None) -> None:
        if seconds is not None:
            self._mean_seconds += _LATEST_SHARE * (seconds - self._mean_seconds)
        self._call_next()

    def _call_next(self) -> None:
        """Give a free turn to the first request of the next line."""
        while self._lines:
            key, line = self._lines.popitem(last=False)
            called = line.popleft()
            if line:
                self._lines[key] = line
            if not called.cancelled():
                called.set_result(None)
                return
        self._free += 1
        self._call_last()

    def _call_last(self) -> None:
        while self._last and self._has_room:
            called = self._last.popleft()
            if not called.cancelled():
                self._free -= 1
                called.set_result(None)


async def _called(called: asyncio.Future[None], give_back: Callable[[], object]) -> None:
    """Wait to be called. A cancelled future stays in its line, and is skipped there."""
    try:
        await called
    except asyncio.CancelledError:
        if called.done() and not called.cancelled():
            # It was called at the moment of its cancellation.
            give_back()
        raise
