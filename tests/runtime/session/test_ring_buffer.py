"""The ring buffer is first in, first out, also when it wraps around at its end."""

from __future__ import annotations

import numpy as np
import pytest

from voxcpm_runtime.session.ring_buffer import RingBuffer


def pcm(*samples: int) -> np.ndarray:
    return np.array(samples, np.int16)


def test_what_is_written_over_the_end_is_read_in_order() -> None:
    ring = RingBuffer(5)
    ring.write(pcm(1, 2, 3, 4))
    assert ring.read(3).tolist() == [1, 2, 3]
    ring.write(pcm(5, 6, 7, 8))
    assert (ring.filled, ring.free) == (5, 0)
    assert ring.read(5).tolist() == [4, 5, 6, 7, 8]
    assert (ring.filled, ring.free) == (0, 5)


def test_any_lengths_give_what_a_list_gives() -> None:
    rng = np.random.default_rng(0)
    ring, queue, value = RingBuffer(17), [], 0
    for _ in range(3000):
        count = int(rng.integers(0, ring.free + 1))
        ring.write(np.arange(value, value + count, dtype=np.int32).astype(np.int16))
        queue += [(value + i + 2**15) % 2**16 - 2**15 for i in range(count)]
        value += count
        count = int(rng.integers(0, ring.filled + 1))
        assert ring.read(count).tolist() == queue[:count]
        del queue[:count]
    assert value > 1000 * 17 / 5


def test_what_was_read_does_not_change_with_the_next_write() -> None:
    ring = RingBuffer(2)
    ring.write(pcm(1, 2))
    read = ring.read(2)
    ring.write(pcm(3, 4))
    assert read.tolist() == [1, 2]


def test_more_than_there_is_room_or_samples_for_is_refused() -> None:
    ring = RingBuffer(2)
    ring.write(pcm(1))
    with pytest.raises(ValueError, match="2 samples do not fit 1 free"):
        ring.write(pcm(1, 2))
    with pytest.raises(ValueError, match="2 samples are more than the 1"):
        ring.read(2)
    assert ring.read(1).tolist() == [1]
