"""How many items go through a step model that takes a few fixed lengths only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# A call reads all weights once, which costs about as much time as the arithmetic of this many items.
_CALL_COST = 8


class Chunk(NamedTuple):
    """Items start..start+length, run as `size` of them: the last size - length are padding."""

    start: int
    length: int
    size: int


def plan_chunks(
    count: int, sizes: Sequence[int], *, position: int = 0, capacity: int | None = None
) -> tuple[Chunk, ...]:
    """The cheapest way to run `count` items in chunks of `sizes`; only the last chunk may be padded.

    position, capacity: where the first item lies in a KV cache, and its length. Padding too is written there, so it
    has to fit; whatever stands in it is overwritten before anything attends to it. Raises ValueError when `count`
    items cannot be placed.
    """
    end = position + count
    best: list[tuple[int, int]] = [(0, 0)]
    """(cost, first chunk's size) of the last `index` items."""
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
