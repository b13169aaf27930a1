"""Two stages of a pipeline at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The items, each made by a thread of its own while the caller works on the one before.

    Never further ahead than one. Errors arrive in their item's place; closing waits for the item in the making.
    """
    batches = ([item] for item in items)
    end: list[Item] = []
    with ThreadPoolExecutor(1, "one_ahead") as thread:
        pending = thread.submit(next, batches, end)
        while batch := pending.result():
            pending = thread.submit(next, batches, end)
            yield batch[0]
