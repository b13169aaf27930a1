"""Attention over the part of a KV cache that is in use: later positions are masked, so reading them changes nothing.

A step model's attention reads its whole cache, as shapes on Apple's hardware are fixed. Where the mask is seen to hide
every position after those of the embeddings, keys, values and mask are cut off behind them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from voxcpm_runtime.backends.portable.formulas import Formula, constant_value, matches
from voxcpm_runtime.backends.portable.graph import Graph

# softmax(queries · keysᵀ + mask) · values, and a mask that counts positions from 0 on.
ATTENTION: Formula = {
    "result": ("MatMul", "weights", "values"),
    "weights": ("Softmax", "masked"),
    "masked": ("Add", "scores", "mask"),
    "scores": ("FusedMatMul", "queries", "keys"),
    "mask": ("Mul", "future", "penalty"),
    "future": ("Cast", "later"),
    "later": ("Greater", "counted", "positions"),
}

# A score that is this much lower than another is zero after the softmax.
_PENALTY = -1e4

# The cut is at a multiple of this, so that few different shapes occur.
_CUT = 64


def cut_behind_positions(nodes: Sequence[NodeProto], graph: Graph) -> list[NodeProto]:
    """The nodes, with each such attention cut at the next multiple of 64 behind its last position."""
    producers = {output: node for node in nodes for output in node.output}
    cuts = _cuts(nodes, producers, graph)
    result: list[NodeProto] = []
    shared: dict[tuple[str, ...], str] = {}

    def emit(kind: str, *inputs: str, **attributes: Any) -> str:
        key = (kind, *inputs)
        if key not in shared:
            name = shared[key] = graph.name(kind)
            result.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return shared[key]

    for node in nodes:
        if node.output[0] in cuts:
            value, axis, positions = cuts[node.output[0]]
            step = graph.integers([_CUT])
            last = emit("ReduceMax", emit("Cast", positions, to=TensorProto.INT64), keepdims=0)
            last = emit("Reshape", last, graph.integers([1]))
            end = emit("Mul", emit("Div", emit("Add", last, step), step), step)
            part = emit("Slice", value, graph.integers([0]), end, graph.integers([axis]))
            node.input[:] = [part if name == value else name for name in node.input]
        result.append(node)
    return result


def _cuts(
    nodes: Sequence[NodeProto], producers: Mapping[str, NodeProto], graph: Graph
) -> dict[str, tuple[str, int, str]]:
    """Result of a node -> which of its inputs to cut, along which axis, and the positions behind which."""
    cuts = {}
    for node in nodes:
        if node.op_type != ATTENTION["result"][0]:
            continue
        for names in matches(ATTENTION, "result", node.output[0], {}, producers):
            counted, penalty = (constant_value(graph, names[key]) for key in ("counted", "penalty"))
            if counted is None or penalty is None or penalty.max() > _PENALTY:
                continue
            if np.array_equal(counted.reshape(-1), np.arange(counted.shape[-1])):
                positions = names["positions"]
                cuts[names["scores"]] = (names["keys"], -2, positions)
                cuts[names["masked"]] = (names["mask"], -1, positions)
                cuts[names["result"]] = (names["values"], -2, positions)
    return cuts
