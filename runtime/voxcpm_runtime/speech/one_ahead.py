"""A pipeline of two stages that run at the same time."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def one_ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """The items, each made on another thread while the caller works on the one before.

    The thread is at most one item ahead. An error is raised when its item is asked for. Closing waits for the item that
    is being made.
    """
    batches = ([item] for item in items)
    end: list[Item] = []
    with ThreadPoolExecutor(1, "one_ahead") as thread:
        pending = thread.submit(next, batches, end)
        try:
            while batch := pending.result():
                pending = thread.submit(next, batches, end)
                yield batch[0]
        finally:
            # An error's traceback has this frame: with the error in it, both would keep all that the frames hold.
            del pending
