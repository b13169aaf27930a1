"""What a thread makes for the event loop, and how a listener would hear it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
# How often a thread that waits for its reader checks for cancellation.
_POLL_SECONDS = 0.05


class Pipe(Generic[Item]):
    """A bounded queue from a thread to the event loop, on which it is created; `async for` takes the items.

    `put` and `end` are called on the thread, everything else on the event loop. room: items that may wait; then `put`
    blocks.
    """

    def __init__(self, room: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(room)
        self._done = asyncio.Event()
        self._callbacks: list[Callable[[], object]] = []
        self._exhausted = False

    def put(self, item: Item, check: Callable[[], object]) -> float:
        """Add an item, and return the seconds that it waited for room. check: called meanwhile, may raise."""
        began = time.perf_counter()
        while not self._room.acquire(timeout=_POLL_SECONDS):
            check()
        self.on_the_loop(self._items.put_nowait, item)
        return time.perf_counter() - began

    def end(self, error: Exception | None = None) -> None:
        """Nothing more is made. The reader gets the error after all items."""
        self.on_the_loop(self._end, error)

    def on_the_loop(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the event loop call a function, from any thread."""
        # The loop may be closed: then nobody is there to read.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    async def take(self) -> Item | None:
        """The next item; None at the end. Raises the error that it ended with, once."""
        if self._exhausted:
            return None
        item = await self._items.get()
        self._room.release()
        if item is None or isinstance(item, Exception):
            self._exhausted = True
        if isinstance(item, Exception):
            raise item
        return item

    def __aiter__(self) -> Pipe[Item]:
        """The pipe itself."""
        return self

    async def __anext__(self) -> Item:
        """The next item. Raises as `take`."""
        item = await self.take()
        if item is None:
            raise StopAsyncIteration
        return item

    def discard(self) -> None:
        """Ignore everything that has not been read."""
        self._exhausted = True

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call this on the event loop when nothing more is made; at once if that is already so."""
        if self._done.is_set():
            callback()
        else:
            self._callbacks.append(callback)

    async def done(self) -> None:
        """Wait until nothing more is made."""
        # A cancelled waiter must not make it look as if the thread had ended.
        await asyncio.shield(self._done.wait())

    def _end(self, error: Exception | None) -> None:
        self._items.put_nowait(error)
        self._done.set()
        for callback in self._callbacks:
            callback()


class Playback:
    """A listener who plays a stream from its first piece on, without a pause as long as there is audio."""

    def __init__(self) -> None:
        self._heard_until: float | None = None
        self.ran_out = False
        """Whether a piece came too late, although its text was there in time."""

    def takes(self, seconds: float, text_since: float = -math.inf) -> None:
        """A piece of so many seconds was made.

        text_since: when its text came (`time.perf_counter`). A listener who had heard everything by then waited for the
        text, not for the speech.
        """
        now = time.perf_counter()
        if self._heard_until is not None and text_since <= self._heard_until < now:
            self.ran_out = True
        self._heard_until = max(now, self._heard_until or now) + seconds

    def pauses(self, seconds: float) -> None:
        """The reader took nothing for so long, and has audio that it has not heard."""
        if self._heard_until is not None:
            self._heard_until += seconds
