"""Rewrites of the half-mode graph for a GPU, where a node costs the launch of a kernel, whatever it computes.

Nodes that nothing reads any more stay in the list; they are dropped later.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto

from voxcpm_runtime.backends.gpu.attention import attention, rotated
from voxcpm_runtime.backends.gpu.view import HEADS_FIRST, View, attribute, is_product, permutation
from voxcpm_runtime.backends.portable.graph import CONTRIB, Graph
from voxcpm_runtime.backends.portable.lowering import Shapes
from voxcpm_runtime.backends.portable.package import Program


def fuse_for_gpu(
    nodes: Sequence[NodeProto], graph: Graph, program: Program, shapes: Shapes
) -> list[NodeProto]:
    """The nodes, with fewer of them for the same results.

    Attention within a patch becomes one node, with one product for queries, keys and values. In other attention
    products are joined, a rotary embedding and a scaled product become one node each, and scatters share indices. A sum
    and its RMSNorm become one node.
    """
    view = View(nodes, graph, shapes, program.weights)
    for rewrite in (attention, _merged, _replaced, _sum_and_norm):
        nodes = [new for node in nodes for new in rewrite(view, node) or [node]]
        view.read(nodes)
    return list(nodes)


def _merged(view: View, node: NodeProto) -> list[NodeProto] | None:
    """Products of one value, each with a constant and each split into heads, as one product where the last was."""
    group = _group(view, node)
    if len(group) < 2 or group[-1] is not node:
        return None
    reshapes = [view.readers[product.output[0]][0] for product in group]
    transposes = [view.readers[reshape.output[0]][0] for reshape in reshapes]
    if min(view.order[id(t)] for t in transposes) < view.order[id(node)]:
        return None
    sizes = [view.heads(reshape) for reshape in reshapes]
    start, graph, integers = len(view.graph.nodes), view.graph, view.graph.integers
    weights = graph.emit("Concat", *(product.input[1] for product in group), axis=0)
    product = graph.emit("FusedMatMul", node.input[0], weights, domain=CONTRIB, transB=1)
    shape = [*sizes[0][:2], sum(size[2] for size in sizes), *sizes[0][3:]]
    heads = graph.emit("Transpose", graph.emit("Reshape", product, integers(shape)), perm=HEADS_FIRST)
    # Not Split: CUDA's copies pointers from the host for unequal parts, which a captured call must not.
    ends = np.cumsum([size[2] for size in sizes]).tolist()
    for begin, end in zip([0, *ends], ends, strict=False):
        graph.emit("Slice", heads, integers([begin]), integers([end]), integers([1]))
    new = view.taken(start)
    # The products that led to these stay unread.
    for part, transpose in zip(new[-len(group) :], transposes, strict=True):
        part.output[:] = [transpose.output[0]]
        transpose.output[:] = [graph.name("unread")]
    return new


def _group(view: View, node: NodeProto) -> list[NodeProto]:
    """The products of a node's first input that can become one, in order; empty if the node is none of them."""
    own = _heads_of(view, node)
    if not own:
        return []
    same = []
    for other in view.readers.get(node.input[0], []):
        heads = _heads_of(view, other)
        if heads and heads[:2] + heads[3:] == own[:2] + own[3:] and other.input[0] == node.input[0]:
            same.append(other)
    return sorted(same, key=lambda product: view.order[id(product)])


def _heads_of(view: View, node: NodeProto) -> list[int]:
    """(batch, positions, heads, width) of a product with a constant that is only split into heads; else empty."""
    if not is_product(node) or not view.is_fixed(node.input[1]):
        return []
    reshape = view.only_reader(node, "Reshape")
    transpose = None if reshape is None else view.only_reader(reshape, "Transpose")
    if reshape is None or transpose is None or permutation(transpose) != HEADS_FIRST:
        return []
    return view.heads(reshape)


def _replaced(view: View, node: NodeProto) -> list[NodeProto] | None:
    """The replacement of a node, and of what led to it, by one node; otherwise None."""
    if node.op_type == "Add":
        return rotated(view, node)
    if node.op_type in ("MatMul", "FusedMatMul"):
        return _scaled_product(view, node)
    if node.op_type == "ScatterElements":
        _share_indices(view, node)
    return None


def _share_indices(view: View, node: NodeProto) -> None:
    """Have scatters of the same positions into caches of one shape read the indices that the first one made."""
    expanded = view.producer(node.input[1], "Expand")
    column = view.producer(expanded.input[0], "Reshape") if expanded is not None else None
    shape = view.shapes.get(node.input[0])
    if column is not None and shape is not None:
        key = ("indices", view.root(column.input[0]), column.input[1], str(shape))
        node.input[1] = view.made.setdefault(key, node.input[1])


def _scaled_product(view: View, node: NodeProto) -> list[NodeProto] | None:
    """(x · constant), reshaped, times y: the constant becomes the product's own factor."""
    reshape = view.producer(node.input[0], "Reshape")
    if reshape is None:
        return None
    for x, factor in view.factors(reshape.input[0]):
        alpha = view.number(factor)
        if alpha is not None:
            start, graph = len(view.graph.nodes), view.graph
            flags = {key: int(attribute(node, key) or 0) for key in ("transA", "transB")}
            shaped = graph.emit("Reshape", x, reshape.input[1])
            result = graph.emit("FusedMatMul", shaped, node.input[1], domain=CONTRIB, alpha=alpha, **flags)
            return view.taken(start, result, node.output[0])
    return None


def _sum_and_norm(view: View, node: NodeProto) -> list[NodeProto] | None:
    """A sum on the residual path with the RMSNorm that reads it.

    ONNX Runtime 1.31 adds up squares in float32, as `device._OPTIONS` asks it to.
    """
    if node.op_type != "Add":
        return None
    first, second = (view.shapes.get(name) for name in node.input)
    if first is None or first != second or len(first) not in (2, 3):
        return None
    readers = view.readers.get(node.output[0], [])
    norms = [reader for reader in readers if reader.op_type == "SimplifiedLayerNormalization"]
    # The weight of a norm that stands here must be there already.
    if len(norms) != 1 or norms[0].input[1] in view.producers:
        return None
    epsilon = next(a.f for a in norms[0].attribute if a.name == "epsilon")
    start = len(view.graph.nodes)
    inputs = (*node.input, norms[0].input[1])
    view.graph.emit_many(
        "SkipSimplifiedLayerNormalization", *inputs, outputs=4, domain=CONTRIB, epsilon=epsilon
    )
    new = view.taken(start)
    new[-1].output[:] = [norms[0].output[0], "", "", node.output[0]]
    norms[0].output[:] = [view.graph.name("unread")]
    return new
