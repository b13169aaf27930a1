"""The MiniCPM4 transformer stack, with or without an explicit KV cache (upstream `modules/minicpm4/model.py`).

Written for fp16: the norm never squares a large value, queries are scaled before the product, and the mask is a
finite number. Shapes below: B sequences of S positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from voxcpm_constants.architecture import LanguageModelConfig, Transformer
from voxcpm_constants.errors import CheckpointError

Rope = tuple[Tensor, Tensor]
"""(cos, sin), each (positions, head_dim)."""

EVERY = slice(None)

# Added to masked scores. The sum stays finite in fp16; its exp() is zero in every precision.
MASKED = -1.0e4
# Lower bound of a vector's largest magnitude: for smaller vectors the norm's epsilon dominates anyway.
_SMALLEST_PEAK = 1e-3


class RMSNorm(nn.Module):
    """Root mean square norm over the last axis: x / rms(x) * weight.

    mean(x²) leaves fp16 at |x| > 255, so x is first divided by its largest magnitude m:
    x / sqrt(mean(x²) + eps) = y / sqrt(mean(y²) + eps / m²) with y = x / m.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        # A tensor, not a number: coremltools turns number / tensor into `inverse`, which adds 1e-4 to the divisor.
        self.root_eps = nn.Buffer(torch.tensor([math.sqrt(eps)], device="cpu"), persistent=False)
        # maximum() with a tensor, not clamp(): clamp becomes `clip` with an upper bound of infinity.
        self.smallest_peak = nn.Buffer(torch.tensor([_SMALLEST_PEAK], device="cpu"), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, S, size) -> (B, S, size)."""
        peak = torch.maximum(x.abs().amax(dim=-1, keepdim=True), self.smallest_peak)
        y = x / peak
        mean_square = (y * y).mean(dim=-1, keepdim=True)
        relative_eps = self.root_eps / peak
        return y * torch.rsqrt(mean_square + relative_eps * relative_eps) * self.weight


Cached = tuple[Tensor, Tensor]
"""Keys and values of one layer, each (1, kv_heads, positions, head_dim)."""


@dataclass(frozen=True)
class Past:
    """The cache of one layer. A step reads all of it, and writes its own keys and values to it in place."""

    cached: Cached
    places: Tensor
    """Indices (S,) of the step's embeddings on the position axis of the caches."""
    mask: Tensor
    """Added to scores, 0 where visible, else MASKED, with a row per row of `Attention`'s product: (groups · S, cache
    positions).
    """
    utterances: int = 1

    def attended(self, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Cached]:
        """The values that the queries attend to, and the cache after keys and values are written to it.

        queries (1, kv_heads, groups · S, head_dim), and so the result. keys, values (1, kv_heads, S, head_dim). In a
        traced graph, writing to an input makes a new value, and writing to a buffer updates a Core ML state.
        """
        # torch names the program's values after these variables.
        cached_keys, cached_values = self.written(keys, values)
        weights = torch.softmax(queries @ cached_keys.transpose(-1, -2) + self.mask, dim=-1)
        return weights @ cached_values, (cached_keys, cached_values)

    def last_row(self, query: Tensor, present: Cached, kv_head: int) -> Tensor:
        """Attention (1, 1, 1, cache positions) of the last embedding's query in one head (1, 1, 1, head_dim)."""
        keys = present[0][:, kv_head : kv_head + 1]
        several = self.utterances > 1
        return torch.softmax(
            query @ keys.transpose(-1, -2) + (self.mask if several else self.mask[-1:]), dim=-1
        )

    def written(self, keys: Tensor, values: Tensor) -> Cached:
        """The cache after the step's keys and values, (1, kv_heads, S, head_dim), are written to it."""
        cached_keys, cached_values = self.cached
        return (
            cached_keys.index_copy_(2, self.places, keys),
            cached_values.index_copy_(2, self.places, values),
        )


@dataclass(frozen=True)
class LayerPast(Past):
    """The cache of one layer of a stack. A step changes a copy of it; the stack is written once, after all layers."""

    rows: list[Tensor] = field(default_factory=list)
    """Filled with the step's keys and values of each layer in turn, (1, kv_heads, S, head_dim)."""

    def written(self, keys: Tensor, values: Tensor) -> Cached:
        """What `Past.written` returns."""
        self.rows.extend((keys, values))
        k, v = (
            cache.index_copy(2, self.places, rows)
            for cache, rows in zip(self.cached, (keys, values), strict=True)
        )
        return k, v


@dataclass(frozen=True)
class PastTogether(Past):
    """The caches of one layer of several utterances, (utterances, kv_heads, positions, head_dim).

    Each utterance has one embedding. places: (utterances,). mask: (utterances, 1, 1, cache positions).
    """

    cells: tuple[Tensor, ...] = ()
    """Indices of the embeddings on the first three axes of the caches, each (utterances, kv_heads)."""

    def written(self, keys: Tensor, values: Tensor) -> Cached:
        """See `Past`."""
        cached_keys, cached_values = self.cached
        return (
            cached_keys.index_put_(self.cells, keys[:, :, 0]),
            cached_values.index_put_(self.cells, values[:, :, 0]),
        )


@dataclass(frozen=True)
class ReadOnlyPast:
    """The cache of one layer before a step. Read-only: the caller appends the step's own keys and values."""

    cached: Cached
    mask: Tensor
    """Added to scores of cached keys: (1, cache positions)."""
    own_mask: Tensor
    """Added to scores of the step's own keys: (groups · S, S)."""
    places: Tensor  # 0, 1, … (cache positions,)
    position: Tensor  # Of the first own key (1,)
    utterances: int = 1

    def attended(self, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Cached]:
        """The values that the queries attend to, and the step's own keys and values; shapes as in `Past.attended`."""
        cached_k, cached_v = self.cached
        before = queries @ cached_k.transpose(-1, -2) + self.mask
        own = queries @ keys.transpose(-1, -2) + self.own_mask
        weights, length = torch.softmax(torch.cat((before, own), dim=-1), dim=-1), cached_k.size(2)
        return weights[..., :length] @ cached_v + weights[..., length:] @ values, (keys, values)

    def last_row(self, query: Tensor, present: Cached, kv_head: int) -> Tensor:
        """What `Past.last_row` returns, for a step of one embedding."""
        one, length = slice(kv_head, kv_head + 1), self.mask.size(-1)
        before = query @ self.cached[0][:, one].transpose(-1, -2) + self.mask
        own = query @ present[0][:, one, -1:].transpose(-1, -2)
        weights = torch.softmax(torch.cat((before, own), dim=-1), dim=-1)
        own_place = (self.places == self.position).to(weights.dtype)
        return weights[..., :length] + weights[..., length:] * own_place


@dataclass(frozen=True)
class WatchedPast:
    """A past that also gives rows of some heads, computed a second time: attention keeps the form that is fused."""

    past: Past | ReadOnlyPast
    heads: Sequence[int]
    transformer: Transformer
    rows: list[Tensor]  # Filled by `attended`
    utterances: int

    def attended(self, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Cached]:
        """What `Past.attended` returns."""
        result, present = self.past.attended(queries, keys, values)
        t = self.transformer
        by_head = queries.reshape(self.utterances, t.num_heads, -1, t.head_dim)
        for head in self.heads:
            query = by_head[:, head : head + 1, -1:]
            self.rows.append(self.past.last_row(query, present, head * t.num_kv_heads // t.num_heads))
        return result, present


AnyPast = Past | ReadOnlyPast | WatchedPast


def attended(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of each sequence's queries over all of its own positions.

    queries (B, kv_heads, groups · rows, head_dim), and so the result; keys, values (B, kv_heads, S, head_dim).
    """
    return torch.softmax(queries @ keys.transpose(-1, -2), dim=-1) @ values


class Attention(nn.Module):
    """Grouped-query attention: the heads that share a key head are rows of one matrix product.

    length: positions of every sequence, with any number of sequences; or None for any length, of as many sequences as
    the past has. Only one of the two axes is unknown, so every reshape can infer it, and the graph contains no shape
    arithmetic.
    """

    def __init__(self, t: Transformer, length: int | None) -> None:
        super().__init__()
        self.length = length
        self.kv_heads, self.groups, self.head_dim = t.num_kv_heads, t.num_heads // t.num_kv_heads, t.head_dim
        query, key = t.num_heads * t.head_dim, t.num_kv_heads * t.head_dim
        self.q_proj = nn.Linear(t.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(t.hidden_size, key, bias=False)
        self.v_proj = nn.Linear(t.hidden_size, key, bias=False)
        self.o_proj = nn.Linear(query, t.hidden_size, bias=False)

    def forward(
        self, x: Tensor, rope: Rope | None, past: AnyPast | None = None, keep: slice = EVERY
    ) -> tuple[Tensor, Cached]:
        """x (B, S, hidden) -> (B, kept, hidden), and the keys and values that were attended to."""
        heads, width = self.kv_heads * self.groups, self.head_dim
        # reshape infers the axis that is -1.
        batch, total = (past.utterances if past else 1, -1) if self.length is None else (-1, self.length)
        queries = total if self.length is None else len(range(self.length)[keep])
        rows = -1 if queries == -1 else self.groups * queries
        q = self.q_proj(kept(x, keep)).reshape(batch, queries, heads, width).transpose(1, 2)
        k = self.k_proj(x).reshape(batch, total, self.kv_heads, width).transpose(1, 2)
        v = self.v_proj(x).reshape(batch, total, self.kv_heads, width).transpose(1, 2)
        if rope is not None:
            cos, sin = rope
            q, k = rotate(q, (cos[keep], sin[keep])), rotate(k, rope)
        q = (q * width**-0.5).reshape(batch, self.kv_heads, rows, width)
        if past is None:
            result, present = attended(q, k, v), (k, v)
        else:
            result, present = past.attended(q, k, v)
        result = result.reshape(batch, heads, queries, width).transpose(1, 2)
        return self.o_proj(result.reshape(batch, queries, heads * width)), present


def kept(x: Tensor, keep: slice) -> Tensor:
    """The positions `keep` of x (B, S, hidden)."""
    return x if keep == EVERY else x[:, keep]


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotary position embedding of x (..., positions, head_dim)."""
    cos, sin = rope
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class MLP(nn.Module):
    """The gated feed-forward block: down(silu(gate(x)) · up(x))."""

    def __init__(self, t: Transformer) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(t.hidden_size, t.intermediate_size, bias=False)
        self.up_proj = nn.Linear(t.hidden_size, t.intermediate_size, bias=False)
        self.down_proj = nn.Linear(t.intermediate_size, t.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, S, hidden) -> (B, S, hidden)."""
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feed-forward block, each after a norm and with a residual connection."""

    def __init__(self, t: Transformer, length: int | None) -> None:
        super().__init__()
        self.residual_scale = t.residual_scale
        self.self_attn = Attention(t, length)
        self.mlp = MLP(t)
        self.input_layernorm = RMSNorm(t.hidden_size, t.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(t.hidden_size, t.rms_norm_eps)

    def forward(
        self, x: Tensor, rope: Rope | None, past: AnyPast | None = None, keep: slice = EVERY
    ) -> tuple[Tensor, Cached]:
        """x (B, S, hidden) -> (B, kept, hidden): the positions `keep` attend to all, and only they are computed."""
        branch, cached = self.self_attn(self.input_layernorm(x), rope, past, keep)
        x = kept(x, keep) + self._scaled(branch)
        return x + self._scaled(self.mlp(self.post_attention_layernorm(x))), cached

    def _scaled(self, branch: Tensor) -> Tensor:
        return branch if self.residual_scale == 1.0 else branch * self.residual_scale


class Stack(nn.Module):
    """The layers and the final norm. length: see `Attention`."""

    def __init__(self, t: Transformer, length: int | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(t, length) for _ in range(t.num_layers))
        self.norm = RMSNorm(t.hidden_size, t.rms_norm_eps)

    def forward(self, x: Tensor, rope: Rope | None, keep: slice) -> Tensor:
        """Bidirectional attention within each sequence: x (B, S, hidden) -> (B, kept, hidden), the positions `keep`.

        The last layer computes only these. Upstream computes all and drops the others, a fourteenth of the DiT's work.
        """
        *layers, last = self.layers
        for layer in layers:
            x, _ = layer(x, rope)
        x, _ = last(x, rope, keep=keep)
        return self.norm(x)


def rope_table(lm: LanguageModelConfig, head_dim: int, length: int) -> Rope:
    """Cosines and sines of LongRoPE, each (length, head_dim), in float32 and in upstream's order of operations.

    Raises CheckpointError if the checkpoint's factors do not fit the head dimension.
    """
    scaling = lm.rope_scaling
    original = scaling.original_max_position_embeddings
    factors = scaling.long_factor if lm.max_position_embeddings > original else scaling.short_factor
    if len(factors) != head_dim // 2:
        raise CheckpointError(
            f"config.json: rope_scaling has {len(factors)} factors, but a head dimension of {head_dim} needs "
            f"{head_dim // 2}"
        )
    scale = math.sqrt(1 + math.log(lm.max_position_embeddings / original) / math.log(original))
    inverse_frequency = 1.0 / (lm.rope_theta ** (torch.arange(0, head_dim, 2).float() / head_dim))
    positions = torch.arange(length, dtype=torch.float32)
    angles = torch.outer(positions, 1.0 / torch.tensor(factors, dtype=torch.float32)) * inverse_frequency
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * scale, angles.sin() * scale
