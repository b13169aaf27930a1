"""A bounded queue before the step models, fair between keys.

Each key has a line of its own. When a turn is free, the next line gets it, so that a key with a hundred requests delays
another key's first request by one turn only. Work that can wait, such as a job, has the last line: it is called when
all others are empty, and gives its turn up as soon as one is not. Of a narrowed queue it takes both turns at the same
time, so that it holds neither from requests while it waits for the other.
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
    """The right to speak, which a bounded number of texts have at the same time; `leave` gives it to the next."""

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
        """Let the next request in. Calling it again does nothing."""
        if not self._left:
            self._left = True
            seconds = time.perf_counter() - self._began if self._counted else None
            self._queue._leave(seconds)
            if self._within is not None:
                self._within.leave()


class FairQueue:
    """Gives `turns` requests a turn at the same time, while at most `max_waiting` wait.

    max_per_key: requests of one key that may wait. within: a queue whose turn is needed as well, and is waited for
    last, so that who waits here takes no turn from others. Both count together who waits. It belongs to one event loop.
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
        # Who has the last line, and the queue whose turn it waits for as well: this one, or one before it.
        self._last: deque[tuple[asyncio.Future[None], FairQueue]] = deque()
        self._looking: asyncio.Handle | None = None
        # Requests of each key that wait, here or in a queue that shares the bounds.
        self._waiting: Counter[str] = Counter() if within is None else within._waiting
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
        return FairQueue(turns, self._max_waiting, self._max_per_key, self)

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
        await self._called(called, lambda: self._forget(key, called), self._call_next)

    async def enter_last(self) -> Turn:
        """Wait for a turn that no request waits for. Who has it looks at `is_wanted`, and leaves then."""
        wide = self._wide
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (called, self)
        wide._last.append(waiting)
        self._call_last_soon()
        await self._called(called, lambda: wide._last.remove(waiting), self._give_back)
        within = None if wide is self else Turn(wide, counted=False)
        return Turn(self, counted=False, within=within)

    async def _called(
        self, called: asyncio.Future[None], forget: Callable[[], object], give_back: Callable[[], object]
    ) -> None:
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                # It was called in the moment in which it went away.
                give_back()
            else:
                forget()
            raise

    def check(self, key: str) -> None:
        """Raises what `enter` would raise for this key, so that a request is refused before it costs work."""
        if self._has_room and self._wide._has_room:
            return
        if self.waiting >= self._max_waiting:
            raise self._refusal(503, f"{self.waiting} requests are waiting already, the most that may")
        own = self._waiting[key]
        if own >= self._max_per_key:
            raise self._refusal(429, f"{own} requests of this key are waiting already, the most that may")

    @property
    def _wide(self) -> FairQueue:
        """The queue whose turn is waited for last: this one, unless it is narrowed."""
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
        """Give a turn that is free to the next line's first request."""
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
        """Look for who has the last line, one step of the loop later.

        By then a request that was called to the narrow turn waits for the wide one, which was left together with it.
        """
        wide = self._wide
        if wide._looking is not None:
            # An earlier look may come before a request that was called after it.
            wide._looking.cancel()
        if wide._last:
            wide._looking = asyncio.get_running_loop().call_soon(wide._call_last)

    def _call_last(self) -> None:
        for waiting in list(self._last):
            called, queue = waiting
            if self._has_room and queue._has_room and not called.done():
                self._last.remove(waiting)
                queue._take_free()
                called.set_result(None)

    def _take_free(self) -> None:
        """Take a turn that is free, and of the wide queue as well."""
        self._free -= 1
        if self._within is not None:
            self._within._free -= 1

    def _give_back(self) -> None:
        self._call_next()
        if self._within is not None:
            self._within._call_next()

    def _forget(self, key: str, called: asyncio.Future[None]) -> None:
        line = self._lines.get(key)
        if line is not None and called in line:
            line.remove(called)
            if not line:
                del self._lines[key]
