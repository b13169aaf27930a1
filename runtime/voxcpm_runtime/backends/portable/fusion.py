"""Peephole rewrites of the plain-mode graph: a formula → ONNX nodes that compute it faster and as exactly.

The nodes of a replaced formula stay in the list; those that nothing reads are dropped later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import NodeProto, helper

from voxcpm_runtime.backends.portable.formulas import Formula, constant_value, matches
from voxcpm_runtime.backends.portable.graph import Graph

# RMSNorm as written for fp16: x is divided by its largest magnitude before it is squared. In float32 that gives the
# same result and takes 5 to 10 times as long.
RMS_NORM: Formula = {
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

# The largest epsilon of rsqrt for which the formula holds in float32: mean(y²) is at least 1/size.
NEGLIGIBLE = 1e-9


def fuse(nodes: Sequence[NodeProto], graph: Graph) -> list[NodeProto]:
    """The nodes, with the last node of each RMSNorm replaced by one that computes all of it."""
    producers = {output: node for node in nodes for output in node.output}
    return [_rms_norm(node, producers, graph) or node for node in nodes]


def _rms_norm(node: NodeProto, producers: Mapping[str, NodeProto], graph: Graph) -> NodeProto | None:
    if node.op_type != RMS_NORM["normalized"][0]:
        return None
    for names in matches(RMS_NORM, "normalized", node.output[0], {}, producers):
        axes, tiny, root_eps = (constant_value(graph, names[key]) for key in ("axes", "tiny", "root_eps"))
        if axes is None or tiny is None or root_eps is None or constant_value(graph, names["floor"]) is None:
            continue
        keeps = all(_keeps_dims(producers[names[key]]) for key in ("mean_square", "largest"))
        last_axis = axes.tolist() == [-1] and keeps and _rank(graph, names["weight"], producers) == 1
        if last_axis and tiny.max() <= NEGLIGIBLE and root_eps.size == 1:
            return helper.make_node(
                "SimplifiedLayerNormalization", [names["x"], names["weight"]], list(node.output),
                name=node.name, axis=-1, epsilon=float(root_eps.item()) ** 2,
            )  # fmt: skip
    return None


def _keeps_dims(node: NodeProto) -> bool:
    return any(a.name == "keepdims" and a.i == 1 for a in node.attribute)


def _rank(graph: Graph, name: str, producers: Mapping[str, NodeProto]) -> int | None:
    """Rank of a constant, inline or in weight.bin; None for any other value."""
    if name in graph.initializers:
        return len(graph.initializers[name].dims)
    if name in producers and producers[name].op_type == "Cast":
        name = producers[name].input[0]
    return len(graph.weights[name].shape) if name in graph.weights else None
