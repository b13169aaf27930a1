"""Attention as sums, the form in which Core AI computes its matrix products best in halves.

Core AI's runtime for Linux rounds every product and partial sum of a matrix product to float16, and adds along an axis
precisely. So a matrix product with a cache sums few values here, and then the partial sums are added. The local
transformers attend to few positions: theirs are products of single values, and one sum.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from voxcpm_conversion.modules.minicpm4 import Attention, Cached, Past, by_utterance
from voxcpm_conversion.step_modules import CachedStack

CHANNELS, POSITIONS = 4, 32
"""Values that one matrix product sums, for scores and for attended values. TRIALS.md has other sizes."""


class PastInBlocks(Past):
    """The cache of one layer, whose products are summed over blocks first, and then over the blocks."""

    def attended(self, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Cached]:
        """What `Past.attended` returns."""
        updated = self.written(keys, values)
        k, v = (by_utterance(tensor, self.batch) for tensor in updated)
        weights = torch.softmax(summed_scores(queries, k) + self.mask, dim=-1)
        return summed_values(weights, v), updated


def summed_scores(queries: Tensor, keys: Tensor) -> Tensor:
    """queries (…, rows, head_dim) and keys (…, positions, head_dim) -> their products (…, rows, positions).

    A head dimension that is no multiple of `CHANNELS` is summed at once.
    """
    *leading, rows, width = queries.shape
    positions = keys.size(-2)
    if width % CHANNELS:
        return queries @ keys.transpose(-1, -2)
    # Heads and utterances are one axis, as hardware takes no more than four. The channels of a block are far apart,
    # since neighbours are often large together.
    q = queries.reshape(-1, rows, CHANNELS, width // CHANNELS).permute(0, 3, 1, 2)
    k = keys.reshape(-1, positions, CHANNELS, width // CHANNELS).permute(0, 3, 2, 1)
    return (q @ k).sum(1).reshape(*leading, rows, positions)


def summed_values(weights: Tensor, values: Tensor) -> Tensor:
    """weights (…, rows, positions) and values (…, positions, head_dim) -> their products (…, rows, head_dim).

    A cache whose length is no multiple of `POSITIONS` is summed at once.
    """
    *leading, rows, positions = weights.shape
    width = values.size(-1)
    if positions % POSITIONS:
        return weights @ values
    w = weights.reshape(-1, rows, positions // POSITIONS, POSITIONS).transpose(1, 2)
    v = values.reshape(-1, positions // POSITIONS, POSITIONS, width)
    return (w @ v).sum(1).reshape(*leading, rows, width)


def attended_by_sums(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """What `minicpm4.attended` returns."""
    *leading, rows, width = queries.shape
    positions = keys.size(-2)
    # Heads and sequences are one axis, as hardware takes no more than four.
    q = queries.reshape(-1, rows, 1, width)
    k, v = (tensor.reshape(-1, 1, positions, width) for tensor in (keys, values))
    weights = torch.softmax((q * k).sum(-1), dim=-1)
    return (weights[..., None] * v).sum(2).reshape(*leading, rows, width)


def use_sums(steps: Iterable[nn.Module]) -> None:
    """Have the transformers among step modules attend in the forms above, in place: to caches in blocks."""
    for step in steps:
        for module in step.modules():
            if isinstance(module, CachedStack):
                module.past = PastInBlocks
            elif isinstance(module, Attention):
                module.attended = attended_by_sums
