"""A pipeline of two stages that run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")

LINGER_SECONDS = 0.5
"""Seconds that a thread waits for more to do before it ends: a pause shorter than that costs no new thread."""


def one_ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """The items, each made on another thread while the caller works on the one before.

    The thread is at most one item ahead, and ends when the caller takes none for LINGER_SECONDS: a speech that waits
    for its reader holds no thread. The next one goes on where it ended. An error is raised when its item is asked for.
    Closing waits for the item that is being made.
    """
    maker = _Maker(items)
    pending = maker.submit()
    try:
        while batch := pending.result():
            pending = maker.submit()
            yield batch[0]
    finally:
        # An error's traceback has this frame: with the error in it, both would keep all that the frames hold.
        del pending
        maker.close()


class _Maker(Generic[Item]):
    """Makes items one at a time, on a thread that it has while they are asked for."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._changed = threading.Condition()
        self._asked: Future[list[Item]] | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self) -> Future[list[Item]]:
        """The next item, in a list; an empty list at the end."""
        future: Future[list[Item]] = Future()
        with self._changed:
            self._asked = future
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="one_ahead")
                self._thread.start()
            self._changed.notify_all()
        return future

    def close(self) -> None:
        """Wait for the item that is being made, and for the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while (future := self._next()) is not None:
            try:
                item = next(self._items, _END)
            except BaseException as error:  # noqa: BLE001 - raised where the item is asked for
                future.set_exception(error)
            else:
                future.set_result([] if item is _END else [item])  # type: ignore[list-item]
            del future

    def _next(self) -> Future[list[Item]] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._closed, LINGER_SECONDS)
            future, self._asked = self._asked, None
            if future is None:
                self._thread = None
            return future


_END = object()
