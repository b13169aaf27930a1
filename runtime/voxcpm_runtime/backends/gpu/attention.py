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
from voxcpm_runtime.backends.gpu.view import HEADS_FIRST, View, attribute, is_product
from voxcpm_runtime.backends.portable.formulas import Formula, Names
from voxcpm_runtime.backends.portable.graph import CONTRIB

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


@dataclass(frozen=True)
class Attention:
    """Attention in which a group of query heads shares a head of keys and values."""

    queries: Part
    keys: Part
    values: Part
    scale: float
    """What the scores are multiplied by."""


def attention(view: View, node: NodeProto) -> list[NodeProto] | None:
    """What stands for a product of attention's result with a weight, with all that led to it; None for another node."""
    if not is_product(node) or not view.is_fixed(node.input[1]):
        return None
    found = _attention_within(view, node.input[0])
    if found is None:
        return None
    q, k, v = found.queries, found.keys, found.values
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
        "MultiHeadAttention", rows, keys, values, domain=CONTRIB, num_heads=k.heads, scale=found.scale
    )
    rows = graph.emit("Reshape", rows, integers([-1, q.positions, q.heads * k.width]))
    weight = _reordered(view, node.input[1], (-1, *grouped), (0, 2, 1, 3), (-1, q.heads * k.width))
    result = graph.emit("FusedMatMul", rows, weight, domain=CONTRIB, transB=1)
    return view.appended(start, result, node.output[0])


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


def _attention_within(view: View, rows: str) -> Attention | None:
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
