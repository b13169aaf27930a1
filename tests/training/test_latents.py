"""Shards are read ahead of the encoder, a few at a time, and come in the order of their paths."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from voxcpm_training.latents import _read


def write_shards(folder: Path, count: int) -> list[Path]:
    """Shards whose names are not in order; shard i has i + 1 utterances, whose every sample is i."""
    paths = [folder / f"{(7 * i) % 11}.npz" for i in range(count)]
    for i, path in enumerate(paths):
        np.savez(path, samples=np.full(i + 1, 10, np.int32), audio=np.full(10 * (i + 1), i, np.int16))
    return paths


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 9])
def test_shards_come_in_the_order_of_their_paths(tmp_path: Path, count: int) -> None:
    found = list(_read(write_shards(tmp_path, count)))

    assert [samples.tolist() for samples, _ in found] == [[10] * (i + 1) for i in range(count)]
    assert [audio.tolist() for _, audio in found] == [[i] * 10 * (i + 1) for i in range(count)]
    assert all(samples.dtype == np.int64 and audio.dtype == np.int16 for samples, audio in found)


def test_a_slow_shard_is_waited_for_and_four_are_in_memory_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first shard is read only after the fourth."""
    paths = write_shards(tmp_path, 9)
    load, begun, fourth = np.load, [], threading.Event()

    def slow(path: Path):
        begun.append(path)
        if path == paths[3]:
            fourth.set()
        assert path != paths[0] or fourth.wait(60)
        return load(path)

    monkeypatch.setattr(np, "load", slow)

    numbers = []
    for samples, _ in _read(paths):
        numbers.append(len(samples) - 1)
        # The one in hand, and three that wait.
        assert len(begun) <= len(numbers) + 3

    assert numbers == list(range(9))
    assert sorted(begun) == sorted(paths)
