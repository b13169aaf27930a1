"""Attention within a patch as one node for a GPU, with as little as ONNX Runtime's kernel needs around it.

Queries, keys and values are one product. `MultiHeadAttention` takes them as three parts of the rotated product: the
heads that share a key head become rows of a sequence, for which weights are put into another order when the graph is
loaded. The node adds up in float32 on CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto

from voxcpm_runtime.backends.gpu.attention_form import (
    Part,
    attention_within,
)
from voxcpm_runtime.backends.gpu.rotary import fixed_tables
from voxcpm_runtime.backends.gpu.view import View, is_product
from voxcpm_runtime.backends.portable.graph import CONTRIB


def attention(view: View, node: NodeProto) -> list[NodeProto] | None:
    """What stands for a product of attention's result with a weight, with all that led to it; None for another node."""
    if not is_product(node) or not view.is_fixed(node.input[1]):
        return None
    found = attention_within(view, node.input[0])
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
