"""Writing the rows that a step model returns into KV caches that the caller owns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voxcpm_runtime.backends.step_function import Array


def write_rows(cache: Array, rows: Array, positions: npt.NDArray[np.int32]) -> None:
    """Write rows (1, kv_heads, B · S, head_dim) into a cache (1, kv_heads, B · positions, head_dim).

    positions (B,): of the first of each utterance's S rows, within the utterance's part of the cache.
    """
    length, count = cache.shape[2] // len(positions), rows.shape[2] // len(positions)
    for utterance, position in enumerate(positions):
        start = utterance * length + int(position)
        cache[:, :, start : start + count] = rows[:, :, utterance * count : (utterance + 1) * count]
