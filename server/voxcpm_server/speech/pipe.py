"""A pipe from a thread to the event loop: what the thread makes waits in it, a bounded number of items at a time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
# How often a thread that waits for its reader looks whether it was cancelled.
_POLL_SECONDS = 0.05


class Pipe(Generic[Item]):
    """`put` and `end` are the thread's, all else belongs to the event loop, on which it is made.

    room: items that may wait; then the thread does.
    """

    def __init__(self, room: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(room)
        self._done = asyncio.Event()
        self._callbacks: list[Callable[[], object]] = []
        self._read_to_the_end = False

    def put(self, item: Item, check: Callable[[], object]) -> None:
        """Give an item to the reader. check: called while there is no room; what it raises ends the waiting."""
        while not self._room.acquire(timeout=_POLL_SECONDS):
            check()
        self.on_the_loop(self._items.put_nowait, item)

    def end(self, error: Exception | None = None) -> None:
        """Say that nothing more is made; the reader gets the error behind all items."""
        self.on_the_loop(self._end, error)

    def on_the_loop(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the event loop call a function, from whichever thread."""
        # The loop may be closed: then nobody is there to take it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    async def take(self) -> Item | None:
        """The next item; None at the end. Raises the error that it ended with, once."""
        if self._read_to_the_end:
            return None
        item = await self._items.get()
        self._room.release()
        if item is None or isinstance(item, Exception):
            self._read_to_the_end = True
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        """Take nothing more of what has been made."""
        self._read_to_the_end = True

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call this on the event loop when nothing more is made: at once, if that is so already."""
        if self._done.is_set():
            callback()
        else:
            self._callbacks.append(callback)

    async def done(self) -> None:
        """Wait until nothing more is made."""
        # Whoever waits may be cancelled, which must not look as if the thread had ended: it ends by itself in any case.
        await asyncio.shield(self._done.wait())

    def _end(self, error: Exception | None) -> None:
        self._items.put_nowait(error)
        self._done.set()
        for callback in self._callbacks:
            callback()
