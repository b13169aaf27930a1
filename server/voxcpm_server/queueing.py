"""A bounded queue before the step models, fair between keys.

Each key has a line of its own. When a turn is free, the next line gets it, so that a key with a hundred requests delays
another key's first request by one turn only. Work that can wait, such as a job, has the last line: it is called when
all others are empty, and gives its turn up as soon as one is not.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from voxcpm_server.errors import ApiError

_GREATEST_RETRY_AFTER = 300
# Share of the latest turn in the mean duration of turns.
_LATEST_SHARE = 0.2


class Turn:
    """The right to speak, which a bounded number of texts have at the same time; `leave` gives it to the next."""

    def __init__(self, queue: FairQueue, *, counted: bool = True, within: Turn | None = None) -> None:
        self._queue = queue
        self._within = within
        self._began = time.perf_counter()
        self._counted = counted
        self._left = False

    @property
    def is_wanted(self) -> bool:
        """Whether a request waits for a turn. Any thread may ask."""
        return bool(self._queue._lines)  # noqa: SLF001 - its own module

    def leave(self) -> None:
        """Let the next request in. Calling it again does nothing."""
        if not self._left:
            self._left = True
            seconds = time.perf_counter() - self._began if self._counted else None
            self._queue._leave(seconds)  # noqa: SLF001 - its own module
            if self._within is not None:
                self._within.leave()


class FairQueue:
    """Gives `turns` requests a turn at the same time, while at most `most_waiting` wait.

    most_per_key: requests of one key that may wait. within: a queue whose turn is needed as well, and is waited for
    last, so that who waits here takes no turn from others. Both count together who waits. It belongs to one event loop.
    """

    def __init__(
        self, turns: int, most_waiting: int, most_per_key: int, within: FairQueue | None = None
    ) -> None:
        self._free = turns
        self._turns = turns
        self._most_waiting = most_waiting
        self._most_per_key = most_per_key
        self._within = within
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._last: deque[asyncio.Future[None]] = deque()
        # Requests of each key that wait, here or in a queue that shares the bounds.
        self._waiting: Counter[str] = Counter() if within is None else within._waiting  # noqa: SLF001 - its own class
        self._mean_seconds = 1.0

    @property
    def waiting(self) -> int:
        """Number of requests that wait, with those of queues that share the bounds."""
        return sum(self._waiting.values())

    @property
    def busy(self) -> int:
        """Number of turns that are taken."""
        return self._turns - self._free

    def widen(self, turns: int) -> None:
        """Give so many turns at the same time, if it was fewer."""
        for _ in range(turns - self._turns):
            self._turns += 1
            self._call_next()

    def narrowed(self, turns: int) -> FairQueue:
        """A queue before this one, for those of its requests of which only `turns` may speak at the same time."""
        return FairQueue(turns, self._most_waiting, self._most_per_key, self)

    async def enter(self, key: str) -> Turn:
        """Wait for a turn. key: whose request it is.

        Raises ApiError at once if too many wait: 429 if they are this key's own, otherwise 503, with Retry-After.
        """
        self.check(key)
        within = None
        self._waiting[key] += 1
        try:
            await self._take(key)
            if self._within is not None:
                try:
                    await self._within._take(key)  # noqa: SLF001 - its own class
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
        await self._called(called, lambda: self._forget(key, called))

    async def enter_last(self) -> Turn:
        """Wait for a turn that no request waits for. Who has it looks at `is_wanted`, and leaves then."""
        if self._has_room and not self._last:
            self._free -= 1
        else:
            called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._last.append(called)
            await self._called(called, lambda: self._last.remove(called))
        return Turn(self, counted=False)

    async def _called(self, called: asyncio.Future[None], forget: Callable[[], object]) -> None:
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                # It was called in the moment in which it went away.
                self._call_next()
            else:
                forget()
            raise

    def check(self, key: str) -> None:
        """Raises what `enter` would raise for this key, so that a request is refused before it costs work."""
        wide = self._within
        if self._has_room and (wide is None or wide._has_room):  # noqa: SLF001 - its own class
            return
        if self.waiting >= self._most_waiting:
            raise self._refusal(503, f"{self.waiting} requests are waiting already, the most that may")
        own = self._waiting[key]
        if own >= self._most_per_key:
            raise self._refusal(429, f"{own} requests of this key are waiting already, the most that may")

    @property
    def _has_room(self) -> bool:
        return self._free > 0 and not self._lines

    def _refusal(self, status: int, what: str) -> ApiError:
        seconds = math.ceil(self._mean_seconds * (self.waiting + 1) / self._turns)
        seconds = min(max(seconds, 1), _GREATEST_RETRY_AFTER)
        return ApiError(status, f"{what}; try again in {seconds} s", headers={"Retry-After": str(seconds)})

    def _leave(self, seconds: float | None) -> None:
        if seconds is not None:
            self._mean_seconds += _LATEST_SHARE * (seconds - self._mean_seconds)
        self._call_next()

    def _call_next(self) -> None:
        """Give a turn that is free to the next line's first request."""
        while self._lines:
            key, line = self._lines.popitem(last=False)
            called = line.popleft()
            if line:
                self._lines[key] = line
            if not called.cancelled():
                called.set_result(None)
                return
        while self._last:
            called = self._last.popleft()
            if not called.cancelled():
                called.set_result(None)
                return
        self._free += 1

    def _forget(self, key: str, called: asyncio.Future[None]) -> None:
        line = self._lines.get(key)
        if line is not None and called in line:
            line.remove(called)
            if not line:
                del self._lines[key]
