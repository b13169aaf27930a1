"""A bounded queue in front of the step models, fair between keys.

Each key has its own line. A free turn goes to the next line, so a key with a hundred requests delays another key's
first request by one turn only. Work that can wait, such as a job, is in the last line: it is called when all others are
empty, and yields as soon as one is not. In a narrowed queue it takes both turns at the same time, so that it never
holds one while it waits for the other.
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

    def __init__(self, queue: FairQueue, *, counted: bool = True, within: Turn | None = None) -> None:
        self._queue = queue
        self._within = within
        self._began = time.perf_counter()
        self._counted = counted
        self._left = False

    @property
    def is_wanted(self) -> bool:
        """Whether a request waits for this turn. Any thread may ask."""
        return bool(self._queue._lines) or (self._within is not None and self._within.is_wanted)

    def leave(self) -> None:
        """Let the next request in. Further calls are no-ops."""
        if not self._left:
            self._left = True
            seconds = time.perf_counter() - self._began if self._counted else None
            self._queue._leave(seconds)
            if self._within is not None:
                self._within.leave()


class FairQueue:
    """Gives `turns` requests a turn at the same time, while at most `max_waiting` wait.

    max_per_key: requests of one key that may wait. within: a wider queue whose turn is needed as well, and acquired
    last; both share the bounds. It belongs to one event loop.
    """

    def __init__(
        self, turns: int, max_waiting: int, max_per_key: int, within: FairQueue | None = None
    ) -> None:
        self._free = turns
        self._turns = turns
        self._max_waiting = max_waiting
        self._max_per_key = max_per_key
        self._within = within
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        # The last line: each with the queue that it entered, this one or a narrowed one.
        self._last: deque[tuple[asyncio.Future[None], FairQueue]] = deque()
        self._last_check: asyncio.Handle | None = None
        # Waiting requests of each key, here and in the queues that share the bounds.
        self._waiting: Counter[str] = Counter() if within is None else within._waiting
        self._mean_seconds = 1.0

    @property
    def waiting(self) -> int:
        """Waiting requests, including those of queues that share the bounds."""
        return sum(self._waiting.values())

    @property
    def busy(self) -> int:
        """Turns that are taken."""
        return self._turns - self._free

    def widen(self, turns: int) -> None:
        """Raise the number of turns to this, if it is lower."""
        for _ in range(turns - self._turns):
            self._turns += 1
            self._call_next()

    def narrowed(self, turns: int) -> FairQueue:
        """A queue for some of this queue's requests, of which only `turns` may speak at the same time."""
        return FairQueue(turns, self._max_waiting, self._max_per_key, self)

    async def enter(self, key: str) -> Turn:
        """Wait for a turn. key: whose request it is.

        Raises ApiError with Retry-After at once if too many requests wait: 429 if they are this key's, otherwise 503.
        """
        self.check(key)
        within = None
        self._waiting[key] += 1
        try:
            await self._take(key)
            if self._within is not None:
                try:
                    await self._within._take(key)
                except BaseException:
                    self._call_next()
                    raise
                within = Turn(self._within)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
        return Turn(self, within=within)

    async def _take(self, key: str) -> None:
        """Wait for a turn of this queue alone."""
        if self._has_room:
            self._free -= 1
            return
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(key, deque()).append(called)
        await _called(called, self._call_next)

    async def enter_last(self) -> Turn:
        """Wait for an idle turn. Its holder polls `is_wanted`, and leaves."""
        wide = self._wide
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wide._last.append((called, self))
        self._call_last_soon()
        await _called(called, self._give_back)
        within = None if wide is self else Turn(wide, counted=False)
        return Turn(self, counted=False, within=within)

    def check(self, key: str) -> None:
        """Raises what `enter` would raise, so that a request is refused before any work."""
        if self._has_room and self._wide._has_room:
            return
        if self.waiting >= self._max_waiting:
            raise self._refusal(503, f"{self.waiting} requests are waiting already, the most that may")
        own = self._waiting[key]
        if own >= self._max_per_key:
            raise self._refusal(429, f"{own} requests of this key are waiting already, the most that may")

    @property
    def _wide(self) -> FairQueue:
        """The widest queue: this one, unless it is narrowed."""
        return self if self._within is None else self._within

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
        self._call_last_soon()

    def _call_last_soon(self) -> None:
        """Check the last line one step of the loop later.

        By then a request that got its narrow turn is waiting for the wide one, which was left together with it.
        """
        wide = self._wide
        if wide._last_check is not None:
            # The scheduled check could run before a request that has been called since.
            wide._last_check.cancel()
        if wide._last:
            wide._last_check = asyncio.get_running_loop().call_soon(wide._call_last)

    def _call_last(self) -> None:
        for waiting in list(self._last):
            called, queue = waiting
            if called.done():
                self._last.remove(waiting)
            elif self._has_room and queue._has_room:
                self._last.remove(waiting)
                queue._take_free()
                called.set_result(None)

    def _take_free(self) -> None:
        """Take a free turn, and one of the wide queue."""
        self._free -= 1
        if self._within is not None:
            self._within._free -= 1

    def _give_back(self) -> None:
        self._call_next()
        if self._within is not None:
            self._within._call_next()


async def _called(called: asyncio.Future[None], give_back: Callable[[], object]) -> None:
    """Wait to be called. A cancelled future stays in its line, and is skipped there."""
    try:
        await called
    except asyncio.CancelledError:
        if called.done() and not called.cancelled():
            # It was called at the moment of its cancellation.
            give_back()
        raise
