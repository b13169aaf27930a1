"""Attention as one node for a GPU, with as little as ONNX Runtime's kernels need around it.

Queries, keys and values are one product. Over a KV cache in fp16, `GroupQueryAttention` rotates them, writes the cache
and reads what is in use. Within a patch, `MultiHeadAttention` takes them as three parts of the rotated product: the
heads that share a key head become rows of a sequence, for which weights are put into another order when the graph is
loaded. Both nodes add up in float32 on CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from .formulas import Formula
from .gpu_rotary import Rotary, fixed_tables, gathered_tables, rotary
from .gpu_view import HEADS_FIRST, View, attribute
from .graph import CONTRIB

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
}

# A score that is this much lower than another is zero after the softmax.
_PENALTY = -1e4

# Widths of a head that the kernels take are multiples of this.
_WIDTHS = 16


@dataclass(frozen=True)
class _Part:
    """Queries, keys or values, before the product of the embeddings is split into heads."""

    x: str
    weight: str
    batch: int
    positions: int
    heads: int
    width: int
    rotary: Rotary | None


def attention(view: View, node: NodeProto) -> list[NodeProto] | None:
    """What stands for a product of attention's result with a weight, with all that led to it; None for another node.

    The scatters of a cached one get another output name, and stay unread.
    """
    if node.op_type != "FusedMatMul" or not attribute(node, "transB") or not view.is_fixed(node.input[1]):
        return None
    return _cached(view, node) or _within(view, node)


def _cached(view: View, node: NodeProto) -> list[NodeProto] | None:
    names = view.match(_CACHED, "rows", node.input[0])
    if names is None:
        return None
    q, k, v = (_part(view, names[key]) for key in ("turned_queries", "own_keys", "own_values"))
    places = [view.match(_PLACES, "places", names[key]) for key in ("key_places", "value_places")]
    cache = view.shapes.get(names["cached_keys"])
    scale, penalty = (view.number(names[key]) for key in ("factor", "penalty"))
    if not (q and k and v and all(places) and cache and scale and penalty):
        return None
    # CUDA's GroupQueryAttention has no float32 kernel: the call would not open.
    if view.dtypes.get(names["cached_keys"]) != np.float16:
        return None
    length = cache[2]
    positions = {view.root(found["positions"]) for found in places if found}
    counted = view.constant(names["counted"])
    if (
        len(positions) != 1
        or cache[0] != 1
        or length is None
        or {q.batch, k.batch, v.batch} != {1}
        or len({q.x, k.x, v.x}) != 1
        or k.width % _WIDTHS
        or penalty > _PENALTY
        or counted is None
        or not np.array_equal(counted.reshape(-1), np.arange(length))
        or not _spreads(view, names["row_positions"], next(iter(positions)))
    ):
        return None
    start, graph, tables = len(view.graph.nodes), view.graph, ("", "")
    if q.rotary and k.rotary:
        gathered = [gathered_tables(view, found) for found in (q.rotary, k.rotary)]
        if gathered[0] != gathered[1] or gathered[0] is None or {gathered[0][0]} != positions:
            return None
        tables = gathered[0][1:]
    elif q.rotary or k.rotary:
        return None
    (product,) = _products(view, [q, k, v], split=False)
    rows, keys, values = graph.emit_many(
        "GroupQueryAttention", product, "", "", names["cached_keys"], names["cached_values"],
        _last(view, positions.pop()), graph.constant([length], np.int32), *tables, outputs=3, domain=CONTRIB,
        num_heads=q.heads, kv_num_heads=k.heads, scale=scale, do_rotary=int(q.rotary is not None),
    )  # fmt: skip
    result = graph.emit("FusedMatMul", rows, node.input[1], domain=CONTRIB, transB=1)
    new = view.appended(start, result, node.output[0])
    for written, old in ((keys, names["keys"]), (values, names["values"])):
        scatter = view.producers[old]
        scatter.output[:] = [graph.name("unread")]
        for made in new:
            made.output[:] = [old if name == written else name for name in made.output]
    return new


def _within(view: View, node: NodeProto) -> list[NodeProto] | None:
    names = view.match(_WITHIN, "rows", node.input[0])
    if names is None:
        return None
    q, k, v = (_part(view, names[key]) for key in ("turned_queries", "keys", "values"))
    scale = view.number(names["factor"])
    if not (q and k and v and scale) or k.x != v.x or min(q.positions, k.positions) < 1 or k.width % 8:
        return None
    if any(part.rotary and fixed_tables(view, part.rotary) is None for part in (q, k, v)):
        return None
    start, graph, integers = len(view.graph.nodes), view.graph, view.graph.integers
    groups = q.heads // k.heads
    grouped = (k.heads, groups, k.width)
    in_rows = _reordered(view, q.weight, (*grouped, -1), (1, 0, 2, 3), (q.heads * k.width, -1))
    queries = _Part(q.x, in_rows, q.batch, q.positions, q.heads, q.width, q.rotary)
    if q.x == k.x:
        rows, keys, values = _products(view, [queries, k, v])
    else:
        (rows,), (keys, values) = _products(view, [queries]), _products(view, [k, v])
    rows = graph.emit("Reshape", rows, integers([-1, q.positions * groups, k.heads * k.width]))
    rows = graph.emit(
        "MultiHeadAttention", rows, keys, values, domain=CONTRIB, num_heads=k.heads, scale=scale
    )
    rows = graph.emit("Reshape", rows, integers([-1, q.positions, q.heads * k.width]))
    weight = _reordered(view, node.input[1], (-1, *grouped), (0, 2, 1, 3), (-1, q.heads * k.width))
    result = graph.emit("FusedMatMul", rows, weight, domain=CONTRIB, transB=1)
    return view.appended(start, result, node.output[0])


def _part(view: View, value: str) -> _Part | None:
    found = rotary(view, value)
    names = view.match(_PART, "part", value if found is None else found.x)
    if names is None or not view.is_fixed(names["weight"]):
        return None
    shape, product = view.constant(names["shape"]), view.producers[names["product"]]
    turned = view.producers[names["part"]].attribute[0].ints
    if shape is None or shape.size != len(HEADS_FIRST) or min(shape[2:]) < 1 or [*turned] != HEADS_FIRST:
        return None
    if not attribute(product, "transB") or attribute(product, "transA"):
        return None
    batch, positions, heads, width = shape.tolist()
    return _Part(names["x"], names["weight"], batch, positions, heads, width, found)


def _products(view: View, parts: Sequence[_Part], *, split: bool = True) -> list[str]:
    """Parts of one value, each (B, S, heads · width) and rotated where they are; not split: one value, not rotated."""
    graph, integers = view.graph, view.graph.integers
    weights = tuple(part.weight for part in parts)
    weight = weights[0]
    if len(parts) > 1:
        # One for all Euler steps.
        weight = view.shared(("weights", *weights), lambda: graph.emit("Concat", *weights, axis=0))
    product = graph.emit("FusedMatMul", parts[0].x, weight, domain=CONTRIB, transB=1)
    if not split:
        return [product]
    widths = [part.heads * part.width for part in parts]
    if any(part.rotary for part in parts):
        positions, heads = parts[0].positions, sum(part.heads for part in parts)
        # Every head of every position is a row with a place in the tables, so that one node rotates all parts.
        rows = graph.emit("Reshape", product, integers([-1, positions * heads, parts[0].width]))
        tables = _tables(view, parts)
        rows = graph.emit("RotaryEmbedding", rows, integers([0]), *tables, domain=CONTRIB)
        product = graph.emit("Reshape", rows, integers([-1, positions, sum(widths)]))
    if len(parts) == 1:
        return [product]
    return graph.emit_many("Split", product, integers(widths), outputs=len(parts), axis=-1)


def _tables(view: View, parts: Sequence[_Part]) -> list[str]:
    """Cosines and sines (positions · heads, width / 2); 1 and 0 for heads that are not rotated."""
    half = parts[0].width // 2
    columns: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    dtype = np.dtype(np.float32)
    for part in parts:
        found = fixed_tables(view, part.rotary) if part.rotary else None
        for index, column in enumerate(columns):
            table = np.full((part.positions, half), 1.0 - index) if found is None else found[index]
            dtype = dtype if found is None else found[index].dtype
            column.append(np.repeat(table[:, np.newaxis], part.heads, axis=1))
    return [view.graph.constant(np.concatenate(c, axis=1).reshape(-1, half), dtype) for c in columns]


def _reordered(
    view: View, weight: str, split: Sequence[int], order: Sequence[int], shape: Sequence[int]
) -> str:
    """A weight with two of its axes swapped, computed when the graph is loaded."""
    graph, integers = view.graph, view.graph.integers

    def turned() -> str:
        axes = graph.emit("Reshape", weight, integers(split))
        return graph.emit("Reshape", graph.emit("Transpose", axes, perm=list(order)), integers(shape))

    return view.shared(("reordered", weight, str(order)), turned)


def _last(view: View, positions: str) -> str:
    """The last of the positions (S,), int32 (1,): one less than how many are then in use."""
    integers = view.graph.integers
    bounds = (integers([-1]), integers([1 << 31]), integers([0]))
    return view.shared(("last", positions), lambda: view.graph.emit("Slice", positions, *bounds))


def _spreads(view: View, value: str, positions: str) -> bool:
    """Whether a value is the positions, repeated and reshaped."""
    if value == positions:
        return True
    node = view.producers.get(value)
    if node is None or node.op_type not in ("Cast", "Concat", "Expand", "Reshape", "Unsqueeze"):
        return False
    given = node.input if node.op_type == "Concat" else node.input[:1]
    return all(_spreads(view, name, positions) for name in given)
