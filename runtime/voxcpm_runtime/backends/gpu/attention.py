"""Attention within a patch as one node for a GPU, with as little as ONNX Runtime's kernel needs around it.

Queries, keys and values are one product. `MultiHeadAttention` takes them as three parts of the rotated product: the
heads that share a key head become rows of a sequence, for which weights are put into another order when the graph is
loaded. The node adds up in float32 on CUDA. The formulas are those that the conversion writes; the tests compare every
bundle's step models with float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from voxcpm_runtime.backends.gpu.rotary import Rotary, fixed_tables, rotary
from voxcpm_runtime.backends.gpu.view import HEADS_FIRST, View, is_product, permutation
from voxcpm_runtime.backends.portable.graph import CONTRIB
from voxcpm_runtime.backends.portable.rewrites import Formula

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
# Widths of a head that the kernel takes are multiples of this.
_WIDTHS = 8


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


def attention(view: View, node: NodeProto) -> list[NodeProto] | None:
    """The replacement of a product of attention's result with a weight, and of all that led to it; otherwise None."""
    if not is_product(node) or not view.is_fixed(node.input[1]):
        return None
    names = view.match(_WITHIN, "rows", node.input[0])
    if names is None or not is_product(view.producers[names["scores"]]):
        return None
    q, k, v = (_part(view, names[key]) for key in ("turned_queries", "keys", "values"))
    scale = view.number(names["factor"])
    if not (q and k and v and scale) or not _fits(view, q, k, v):
        return None
    start, graph, integers = len(view.graph.nodes), view.graph, view.graph.integers
    groups = q.heads // k.heads
    grouped = (k.heads, groups, k.width)
    in_rows = _reordered(view, q.weight, (*grouped, -1), (1, 0, 2, 3), (q.heads * k.width, -1))
    queries = Part(q.x, in_rows, q.batch, q.positions, q.heads, q.width, q.rotary)
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
    return view.taken(start, result, node.output[0])


def _part(view: View, value: str) -> Part | None:
    found = rotary(view, value)
    names = view.match(_PART, "part", value if found is None else found.x)
    if names is None or not view.is_fixed(names["weight"]):
        return None
    sizes = view.heads(view.producers[names["split"]])
    plain = is_product(view.producers[names["product"]])
    if not sizes or not plain or permutation(view.producers[names["part"]]) != HEADS_FIRST:
        return None
    batch, positions, heads, width = sizes
    return Part(names["x"], names["weight"], batch, positions, heads, width, found)


def _fits(view: View, q: Part, k: Part, v: Part) -> bool:
    """Whether these are parts of attention that the kernel takes: a fixed number of positions, rotated by constants."""
    rotations = (part.rotary for part in (q, k, v) if part.rotary is not None)
    return (
        q.width == k.width == v.width
        and k.width % _WIDTHS == 0
        and k.heads == v.heads
        and q.heads % k.heads == 0
        and k.x == v.x
        and min(q.positions, k.positions) >= 1
        and all(fixed_tables(view, found) is not None for found in rotations)
    )


def _products(view: View, parts: Sequence[Part]) -> list[str]:
    """Parts of one value, each (B, S, heads · width) and rotated where they are."""
    graph, integers = view.graph, view.graph.integers
    weights = tuple(part.weight for part in parts)
    weight = weights[0]
    if len(parts) > 1:
        # One for all Euler steps.
        weight = view.shared(("weights", *weights), lambda: graph.emit("Concat", *weights, axis=0))
    product = graph.emit("FusedMatMul", parts[0].x, weight, domain=CONTRIB, transB=1)
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
    # CUDA's Split copies pointers from the host for unequal parts, which a captured call must not. It does so neither
    # for three parts of the last axis (its kernel Split3Inner takes their sizes by value) nor for two equal ones.
    return graph.emit_many("Split", product, integers(widths), outputs=len(parts), axis=-1)


def _tables(view: View, parts: Sequence[Part]) -> list[str]:
    """Cosines and sines (positions · heads, width / 2); 1 and 0 for heads that are not rotated."""
    half = parts[0].width // 2
    found = [fixed_tables(view, part.rotary) if part.rotary else None for part in parts]
    dtype = next(tables[0].dtype for tables in found if tables is not None)

    def column(index: int) -> np.ndarray:
        plain = 1.0 - index
        each = [
            np.full((p.positions, half), plain) if t is None else t[index]
            for p, t in zip(parts, found, strict=True)
        ]
        by_head = [
            np.repeat(table[:, np.newaxis], part.heads, axis=1)
            for part, table in zip(parts, each, strict=True)
        ]
        return np.concatenate(by_head, axis=1).reshape(-1, half)

    return [view.graph.constant(column(index), dtype) for index in (0, 1)]


def _reordered(
    view: View, weight: str, split: Sequence[int], order: Sequence[int], shape: Sequence[int]
) -> str:
    """A weight with two of its axes swapped, computed when the graph is loaded."""
    graph, integers = view.graph, view.graph.integers

    def turned() -> str:
        axes = graph.emit("Reshape", weight, integers(split))
        return graph.emit("Reshape", graph.emit("Transpose", axes, perm=list(order)), integers(shape))

    return view.shared(("reordered", weight, str(order)), turned)
