"""Splitting items into chunks for a step model that takes only a few fixed lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# A call reads all weights once, which costs about as much time as the arithmetic of this many items.
_CALL_COST = 8


class Chunk(NamedTuple):
    """Items start to start + length - 1, run as `size` items, of which the last size - length are padding."""

    start: int
    length: int
    size: int


def plan_chunks(
    count: int, sizes: Sequence[int], *, position: int = 0, capacity: int | None = None
) -> tuple[Chunk, ...]:
    """The cheapest way to run `count` items in chunks of `sizes`; only the last chunk may be padded.

    position: of the first item in the KV cache. capacity: positions in the cache. Padding is written there, too, so it
    must fit; it is overwritten before anything attends to it. Raises ValueError if `count` items do not fit.
    """
    end = position + count
    best: list[tuple[int, int]] = [(0, 0)]
    """(cost, size of the first chunk) for the last `index` items."""
    for left in range(1, count + 1):
        choices = [
            (_CALL_COST + size + best[max(0, left - size)][0], -size)
            for size in sizes
            if size <= left or capacity is None or end - left + size <= capacity
        ]
        if not choices:
            raise ValueError(
                f"{count} items at position {position} do not fit {capacity} positions in chunks of {sizes}"
            )
        cost, negative = min(choices)
        best.append((cost, -negative))
    chunks = []
    start = 0
    while start < count:
        size = best[count - start][1]
        chunks.append(Chunk(start, min(size, count - start), size))
        start += size
    return tuple(chunks)
