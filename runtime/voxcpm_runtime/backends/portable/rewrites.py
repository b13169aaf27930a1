"""Graph rewrites for speed, with the same results.

A formula is a pattern to match: name of an intermediate value → its operation and operands. Names without an entry are
the formula's inputs. The nodes of a replaced formula stay in the list; unused ones are dropped later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from voxcpm_runtime.backends.portable.graph import KERNELS, Graph
from voxcpm_runtime.backends.portable.kernels import SNAKE

Formula = Mapping[str, tuple[str, ...]]
Names = dict[str, str]
Producers = Mapping[str, NodeProto]

# RMSNorm as converted for fp16: x is divided by its largest magnitude before it is squared. In float32 that is
# unnecessary, and 5 to 10 times slower.
_RMS_NORM: Formula = {
    "normalized": ("Mul", "unscaled", "weight"),
    "unscaled": ("Mul", "y", "inverse_rms"),
    "inverse_rms": ("Reciprocal", "rms"),
    "rms": ("Sqrt", "shifted"),
    "shifted": ("Add", "sum", "tiny"),
    "sum": ("Add", "mean_square", "relative_eps"),
    "mean_square": ("ReduceMean", "square", "axes"),
    "square": ("Mul", "y", "y"),
    "relative_eps": ("Mul", "relative_root", "relative_root"),
    "relative_root": ("Div", "root_eps", "peak"),
    "y": ("Div", "x", "peak"),
    "peak": ("Max", "largest", "floor"),
    "largest": ("ReduceMax", "magnitude", "axes"),
    "magnitude": ("Abs", "x"),
}
# The largest epsilon of rsqrt that is negligible in float32: mean(y²) is at least 1/size.
_NEGLIGIBLE = 1e-9

# softmax(queries · keysᵀ + mask) · values, with a mask of positions from 0 on.
_ATTENTION: Formula = {
    "result": ("MatMul", "weights", "values"),
    "weights": ("Softmax", "masked"),
    "masked": ("Add", "scores", "mask"),
    "scores": ("FusedMatMul", "queries", "keys"),
    "mask": ("Mul", "future", "penalty"),
    "future": ("Cast", "later"),
    "later": ("Greater", "counted", "positions"),
}
# x + sin²(alpha · x) / alpha, with constants of one element per channel.
_SNAKE: Formula = {
    "result": ("Add", "x", "scaled"),
    "scaled": ("Mul", "square", "inverse"),
    "square": ("Mul", "sine", "sine"),
    "sine": ("Sin", "angle"),
    "angle": ("Mul", "x", "alpha"),
}
# A score this much lower than another is zero after the softmax.
_PENALTY = -1e4
# Caches are sliced at a multiple of this, to limit the number of shapes.
_CUT = 64

_COMMUTATIVE = frozenset({"Add", "Max", "Mul"})


def _producers(nodes: Sequence[NodeProto]) -> Producers:
    return {output: node for node in nodes for output in node.output}


def _matches(formula: Formula, key: str, value: str, names: Names, producers: Producers) -> Iterator[Names]:
    """Yield all assignments of ONNX values to the formula's names that extend `names` and assign `value` to `key`."""
    if key in names:
        if names[key] == value:
            yield names
        return
    names = {**names, key: value}
    if key not in formula:
        yield names
        return
    kind, *operands = formula[key]
    node = producers.get(value)
    if node is None or node.op_type != kind or len(node.input) != len(operands):
        return
    orders = [operands, operands[::-1]] if kind in _COMMUTATIVE and operands[0] != operands[1] else [operands]
    for order in orders:
        found: list[Names] = [names]
        for operand, argument in zip(order, node.input, strict=True):
            found = [m for n in found for m in _matches(formula, operand, argument, n, producers)]
        yield from found


def fused_rms_norms(nodes: Sequence[NodeProto], graph: Graph) -> list[NodeProto]:
    """The nodes, with the last node of each RMSNorm replaced by a fused one."""
    producers = _producers(nodes)
    return [_rms_norm(node, producers, graph) or node for node in nodes]


def _rms_norm(node: NodeProto, producers: Producers, graph: Graph) -> NodeProto | None:
    for names in _matches(_RMS_NORM, "normalized", node.output[0], {}, producers):
        axes, tiny, root_eps = (_constant(graph, names[key]) for key in ("axes", "tiny", "root_eps"))
        if axes is None or tiny is None or root_eps is None or _constant(graph, names["floor"]) is None:
            continue
        keeps = all(_keeps_dims(producers[names[key]]) for key in ("mean_square", "largest"))
        last_axis = axes.tolist() == [-1] and keeps and _rank(graph, names["weight"], producers) == 1
        if last_axis and tiny.max() <= _NEGLIGIBLE and root_eps.size == 1:
            return helper.make_node(
                "SimplifiedLayerNormalization", [names["x"], names["weight"]], list(node.output),
                name=node.name, axis=-1, epsilon=float(root_eps.item()) ** 2,
            )  # fmt: skip
    return None


def slice_caches(nodes: Sequence[NodeProto], graph: Graph) -> list[NodeProto]:
    """The nodes, with attention reading the KV cache only up to the next multiple of 64 after its last position.

    The mask hides all later positions. Packages read the whole cache, as shapes are fixed on Apple's hardware.
    """
    cuts = _cuts(nodes, graph)
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


def _cuts(nodes: Sequence[NodeProto], graph: Graph) -> dict[str, tuple[str, int, str]]:
    """Result of a node -> its input to slice, the axis, and the positions that must remain."""
    cuts = {}
    producers = _producers(nodes)
    for node in nodes:
        for names in _matches(_ATTENTION, "result", node.output[0], {}, producers):
            counted, penalty = (_constant(graph, names[key]) for key in ("counted", "penalty"))
            if counted is None or penalty is None or penalty.max() > _PENALTY:
                continue
            if np.array_equal(counted.reshape(-1), np.arange(counted.shape[-1])):
                positions = names["positions"]
                cuts[names["scores"]] = (names["keys"], -2, positions)
                cuts[names["masked"]] = (names["mask"], -1, positions)
                cuts[names["result"]] = (names["values"], -2, positions)
    return cuts


def fused_snakes(nodes: Sequence[NodeProto], graph: Graph) -> list[NodeProto]:
    """The nodes, with the last node of each Snake replaced by a custom operator."""
    producers = _producers(nodes)
    return [_snake(node, producers, graph) or node for node in nodes]


def _snake(node: NodeProto, producers: Producers, graph: Graph) -> NodeProto | None:
    for names in _matches(_SNAKE, "result", node.output[0], {}, producers):
        sizes = [_constant(graph, names[key]) for key in ("alpha", "inverse")]
        # (1, channels, 1), the same for both.
        if all(size is not None and size.shape[::2] == (1, 1) and size.ndim == 3 for size in sizes):
            inputs = [names[key] for key in ("x", "alpha", "inverse")]
            return helper.make_node(SNAKE, inputs, list(node.output), name=node.name, domain=KERNELS)
    return None


def _constant(graph: Graph, name: str) -> np.ndarray | None:
    """A constant stored in the graph; None for any other value."""
    tensor = graph.initializers.get(name)
    return None if tensor is None else numpy_helper.to_array(tensor)


def _keeps_dims(node: NodeProto) -> bool:
    return any(a.name == "keepdims" and a.i == 1 for a in node.attribute)


def _rank(graph: Graph, name: str, producers: Producers) -> int | None:
    """Rank of a constant, inline or in weight.bin; None for any other value."""
    if name in graph.initializers:
        return len(graph.initializers[name].dims)
    if name in producers and producers[name].op_type == "Cast":
        name = producers[name].input[0]
    return len(graph.weights[name].shape) if name in graph.weights else None
