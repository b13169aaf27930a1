"""Where a half-mode graph computes attention, and whether it is exactly what a GPU's nodes for it compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voxcpm_runtime.backends.gpu.rotary import GatheredTables, Rotary, fixed_tables, gathered_tables, rotary
from voxcpm_runtime.backends.gpu.view import HEADS_FIRST, View, attribute, is_product
from voxcpm_runtime.backends.portable.formulas import Formula, Names

# One part of a product of the embeddings: queries, keys or values (B, heads, S, width).
_PART: Formula = {
    "part": ("Transpose", "split"),
    "split": ("Reshape", "product", "shape"),
    "product": ("FusedMatMul", "x", "weight"),
}
# The rows of the last product (B, S, heads · width) of attention among the positions of a patch.
_WITHIN: Formula = {
    "rows": ("Reshape", "turned", "rows_shape"),
    "turned": ("Transpose", "heads"),
    "heads": ("Reshape", "attended", "heads_shape"),
    "attended": ("MatMul", "weights", "values"),
    "weights": ("Softmax", "scores"),
    "scores": ("FusedMatMul", "queries", "keys"),
    "queries": ("Reshape", "scaled", "queries_shape"),
    "scaled": ("Mul", "turned_queries", "factor"),
}
# The same over a KV cache, into which the own keys and values are written first.
_CACHED: Formula = {
    **_WITHIN,
    "weights": ("Softmax", "masked"),
    "masked": ("Add", "scores", "mask"),
    "mask": ("Mul", "future", "penalty"),
    "future": ("Cast", "later"),
    "later": ("Greater", "counted", "row_positions"),
    "keys": ("ScatterElements", "cached_keys", "key_places", "own_keys"),
    "values": ("ScatterElements", "cached_values", "value_places", "own_values"),
}
_PLACES: Formula = {
    "places": ("Expand", "column", "size"),
    "column": ("Reshape", "positions", "column_shape"),
    "size": ("Shape", "own"),
}

# Positions as places along a cache's axis of positions (1, kv_heads, positions, width).
_COLUMN = (1, 1, -1, 1)
_POSITIONS_AXIS = 2

# A score that is this much lower than another is zero after the softmax.
_PENALTY = -1e4

# Widths of a head that the kernels take are multiples of these.
_CACHED_WIDTHS, _WIDTHS = 16, 8


@dataclass(frozen=True)
class Part:
    """Queries, keys or values, before the product of the embeddings is split into heads."""

    x: str
    weight: str
    batch: int
    positions: int
    heads: int
    width: int
    rotary: Rotary | None


@dataclass(frozen=True)
class Attention:
    """Attention in which a group of query heads shares a head of keys and values."""

    queries: Part
    keys: Part
    values: Part
    scale: float
    """What the scores are multiplied by."""


@dataclass(frozen=True)
class CachedAttention(Attention):
    """The same over a KV cache, into which the own keys and values are written."""

    caches: tuple[str, str]
    """Keys and values before, (1, heads, positions, width); names of values, as all that follows."""
    written: tuple[str, str]
    """Keys and values after."""
    positions: str
    """Where the own ones are written (S,)."""
    length: int
    """How many positions a cache has."""
    tables: GatheredTables | None
    """For the rotary embeddings of queries and keys, if they have them."""


def cached_attention(view: View, rows: str) -> CachedAttention | None:
    """The attention over a KV cache whose rows (1, S, heads · width) a value is; None for another value."""
    names = view.match(_CACHED, "rows", rows)
    if names is None:
        return None
    q, k, v = (_part(view, names[key]) for key in ("turned_queries", "own_keys", "own_values"))
    scale, length = view.number(names["factor"]), _cache_length(view, names)
    positions = _written_at(view, names)
    if not (q and k and v and scale and length and positions) or not _attends(view, names, (q, k, v)):
        return None
    if (
        {q.batch, k.batch, v.batch} != {1}
        or len({q.x, k.x, v.x}) != 1
        or len({q.positions, k.positions, v.positions}) != 1
        or view.shapes[names["cached_keys"]] != (1, k.heads, length, k.width)
        or k.width % _CACHED_WIDTHS
        or not _hides_later(view, names, positions, length)
    ):
        return None
    found, of_keys = (None if p.rotary is None else gathered_tables(view, p.rotary) for p in (q, k))
    if (q.rotary or k.rotary or v.rotary) and (
        v.rotary or found is None or found != of_keys or found.positions != positions
    ):
        return None
    caches, written = (names["cached_keys"], names["cached_values"]), (names["keys"], names["values"])
    return CachedAttention(q, k, v, scale, caches, written, positions, length, found)


def attention_within(view: View, rows: str) -> Attention | None:
    """The attention among a fixed number of positions whose rows (B, S, heads · width) a value is; None for another."""
    names = view.match(_WITHIN, "rows", rows)
    if names is None:
        return None
    q, k, v = (_part(view, names[key]) for key in ("turned_queries", "keys", "values"))
    scale = view.number(names["factor"])
    if not (q and k and v and scale) or not _attends(view, names, (q, k, v)):
        return None
    if (
        k.x != v.x
        or len({q.batch, k.batch, v.batch}) != 1
        or k.positions != v.positions
        or (q.x == k.x and q.positions != k.positions)
        or min(q.positions, k.positions) < 1
        or k.width % _WIDTHS
        or not all(_has_tables(view, part) for part in (q, k, v))
    ):
        return None
    return Attention(q, k, v, scale)


def _part(view: View, value: str) -> Part | None:
    found = rotary(view, value)
    names = view.match(_PART, "part", value if found is None else found.x)
    if names is None or not view.is_fixed(names["weight"]):
        return None
    shape, product = view.constant(names["shape"]), view.producers[names["product"]]
    turned = view.producers[names["part"]].attribute[0].ints
    if shape is None or shape.size != len(HEADS_FIRST) or min(shape[2:]) < 1 or [*turned] != HEADS_FIRST:
        return None
    if not is_product(product):
        return None
    batch, positions, heads, width = shape.tolist()
    return Part(names["x"], names["weight"], batch, positions, heads, width, found)


def _attends(view: View, names: Names, parts: tuple[Part, Part, Part]) -> bool:
    """Whether attributes and shapes are those of attention: groups of query heads, each with one key and value head."""
    q, k, v = parts
    if not q.width == k.width == v.width or k.heads != v.heads or q.heads % k.heads:
        return False
    grouped = q.positions * (q.heads // k.heads) if q.positions > 0 else -1
    return (
        is_product(view.producers[names["scores"]])
        and attribute(view.producers[names["weights"]], "axis") in (None, -1, 3)
        and [*view.producers[names["turned"]].attribute[0].ints] == HEADS_FIRST
        and _is_shape(view, names["queries_shape"], (q.batch, k.heads, grouped, q.width))
        and _is_shape(view, names["heads_shape"], (q.batch, q.heads, q.positions, q.width))
        and _is_shape(view, names["rows_shape"], (q.batch, q.positions, q.heads * q.width))
    )


def _is_shape(view: View, name: str, expected: Sequence[int]) -> bool:
    """Whether a constant is the shape, of which it may leave one axis to be inferred."""
    shape = view.constant(name)
    return (
        shape is not None
        and shape.size == len(expected)
        and all(given in (-1, size) for given, size in zip(shape.tolist(), expected, strict=True))
    )


def _has_tables(view: View, part: Part) -> bool:
    """Whether a part is not rotated, or by constants for each of its positions."""
    if part.rotary is None:
        return True
    tables = fixed_tables(view, part.rotary)
    return tables is not None and all(t.shape == (part.positions, part.width // 2) for t in tables)


def _cache_length(view: View, names: Names) -> int | None:
    """How many positions both caches have; None where the node for a GPU cannot take them."""
    caches = (names["cached_keys"], names["cached_values"])
    shape, of_values = (view.shapes.get(cache) for cache in caches)
    if shape is None or shape != of_values:
        return None
    # CUDA's GroupQueryAttention has no float32 kernel: the call would not open.
    half = all(view.dtypes.get(cache) == np.float16 for cache in caches)
    # The node gives what is written at its end, so nothing else may read it.
    read_once = all(len(view.readers[names[key]]) == 1 for key in ("keys", "values"))
    return shape[_POSITIONS_AXIS] if half and read_once else None


def _written_at(view: View, names: Names) -> str | None:
    """The positions (S,) at which all own keys and values are written into the caches; None for another writing."""
    keys, values = (
        _places(view, names[what], names[places], names[own])
        for what, places, own in (
            ("keys", "key_places", "own_keys"),
            ("values", "value_places", "own_values"),
        )
    )
    return keys if keys == values else None


def _places(view: View, written: str, places: str, own: str) -> str | None:
    """The positions (S,) at which a scatter writes all of `own` into a cache; None for another scatter."""
    scatter, found = view.producers[written], view.match(_PLACES, "places", places)
    plain = {a.name for a in scatter.attribute} == {"axis"}
    if found is None or not plain or attribute(scatter, "axis") != _POSITIONS_AXIS:
        return None
    whole = found["own"] == own and _is_shape(view, found["column_shape"], _COLUMN)
    return view.root(found["positions"]) if whole else None


def _hides_later(view: View, names: Names, positions: str, length: int) -> bool:
    """Whether the mask hides every place of the cache behind a row's own position, and no other."""
    penalty, counted = view.number(names["penalty"]), view.constant(names["counted"])
    return (
        penalty is not None
        and penalty <= _PENALTY
        and counted is not None
        and counted.shape[-1:] == (length,)
        and np.array_equal(counted.reshape(-1), np.arange(length))
        and (view.shapes.get(names["row_positions"]) or (None,))[-1] == 1
        and _spreads(view, names["row_positions"], positions)
    )


def _spreads(view: View, value: str, positions: str) -> bool:
    """Whether a value is the positions, once or several times, one after another: a position for each row of scores."""
    if value == positions:
        return True
    node = view.producers.get(value)
    if node is None or node.op_type not in ("Cast", "Concat", "Reshape", "Unsqueeze"):
        return False
    # Side by side they would take turns.
    if node.op_type == "Concat" and attribute(node, "axis"):
        return False
    given = node.input if node.op_type == "Concat" else node.input[:1]
    return all(_spreads(view, name, positions) for name in given)
