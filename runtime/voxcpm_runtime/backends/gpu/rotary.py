"""Rotary embeddings in a half-mode graph: where one is computed, and its tables as ONNX Runtime's nodes take them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from onnx import NodeProto, TensorProto

from voxcpm_runtime.backends.gpu.view import View, attribute
from voxcpm_runtime.backends.portable.graph import CONTRIB


class Rotary(NamedTuple):
    """x · cos + (−second half of x, first half of x) · sin, x (B, heads, S, D); names of values."""

    x: str
    cos: str
    sin: str


def rotary(view: View, value: str) -> Rotary | None:
    """The rotary embedding that a value is; None for another value."""
    node = view.producer(value, "Add")
    if node is None:
        return None
    for straight, turned in (node.input, node.input[::-1]):
        for turn, sin in view.factors(turned):
            x = _turned(view, turn)
            cosines = [cos for other, cos in view.factors(straight) if other == x]
            if x is not None and cosines:
                return Rotary(x, cosines[0], sin)
    return None


def _turned(view: View, value: str) -> str | None:
    """x, if the value is (−second half of x, first half of x)."""
    concat = view.producer(value, "Concat")
    if concat is None or len(concat.input) != 2 or attribute(concat, "axis") not in (-1, 3):
        return None
    for second, sign in view.factors(concat.input[0]):
        split = view.producer(second, "Split")
        if split is not None and view.number(sign) == -1 and list(split.output) == [concat.input[1], second]:
            return str(split.input[0])
    return None


def fixed_tables(view: View, found: Rotary) -> list[np.ndarray] | None:
    """Cosines and sines (positions, D / 2), if they are constants. Both halves of a table are equal."""
    tables = [view.constant(name) for name in (found.cos, found.sin)]
    halves = [
        np.ascontiguousarray(table.reshape(table.shape[-2:])[:, : table.shape[-1] // 2])
        for table in tables
        if table is not None
    ]
    return halves if len(halves) == 2 else None


def rotated(view: View, node: NodeProto) -> list[NodeProto] | None:
    """One node for the rotary embedding that a sum ends; None for another sum."""
    found = rotary(view, node.output[0])
    if found is None:
        return None
    start, graph = len(view.graph.nodes), view.graph
    fixed = fixed_tables(view, found)
    if fixed is None:
        tables = _gathered(view, found)
    else:
        tables = [graph.integers([0]), *(graph.constant(table, table.dtype) for table in fixed)]
    if not tables:
        return None
    result = graph.emit("RotaryEmbedding", found.x, *tables, domain=CONTRIB)
    return view.taken(start, result, node.output[0])


def _gathered(view: View, found: Rotary) -> list[str]:
    """Positions, cosines and sines for tables in which cosines and sines are looked up; empty for another form."""
    gathers = [view.producer(name, "Gather") for name in (found.cos, found.sin)]
    if gathers[0] is None or gathers[1] is None:
        return []
    names = [gather.input[0] for gather in gathers if gather is not None]
    root = view.root(gathers[0].input[1])
    table = view.constant(names[0])
    if table is None:
        return []
    graph, integers = view.graph, view.graph.integers

    def positions() -> str:
        """(1, S) int64."""
        return graph.emit("Unsqueeze", graph.emit("Cast", root, to=TensorProto.INT64), integers([0]))

    shared = view.shared(("positions", root), positions)
    bounds = (integers([0]), integers([table.shape[-1] // 2]), integers([-1]))
    # Cut when the graph is loaded: tables may be large.

    def half(name: str) -> str:
        return view.shared(("half", name), lambda: graph.emit("Slice", name, *bounds))

    return [shared, *map(half, names)]
