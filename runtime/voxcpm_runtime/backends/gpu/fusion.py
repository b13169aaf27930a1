"""Graph rewrites of half mode for a GPU, where every node costs a kernel launch.

Unused nodes stay in the list, and are dropped later. The formulas of attention and rotary embeddings match those of the
conversion; the tests compare every bundle's step models with float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from onnx import NodeProto, TensorProto

from voxcpm_runtime.backends.gpu.view import HEADS_FIRST, View, attribute, is_product, permutation
from voxcpm_runtime.backends.portable.graph import CONTRIB, Graph
from voxcpm_runtime.backends.portable.lowering import Shapes
from voxcpm_runtime.backends.portable.package import Program
from voxcpm_runtime.backends.portable.rewrites import Formula

# One part of the QKV projection: queries, keys or values (B, heads, S, width).
_PART: Formula = {
    "part": ("Transpose", "split"),
    "split": ("Reshape", "product", "shape"),
    "product": ("FusedMatMul", "x", "weight"),
}
# Attention within a patch, up to the input (B, S, heads · width) of the output projection.
_PATCH_ATTENTION: Formula = {
    "rows": ("Reshape", "turned", "rows_shape"),
    "turned": ("Transpose", "heads"),
    "heads": ("Reshape", "attended", "heads_shape"),
    "attended": ("MatMul", "weights", "values"),
    "weights": ("Softmax", "scores"),
    "scores": ("FusedMatMul", "queries", "keys"),
    "queries": ("Reshape", "scaled", "queries_shape"),
    "scaled": ("Mul", "turned_queries", "factor"),
}
# The kernel requires head widths that are multiples of this.
_HEAD_WIDTH_MULTIPLE = 8


class Rotary(NamedTuple):
    """ONNX names of x · cos + (−second half of x, first half of x) · sin, x (B, heads, S, D)."""

    x: str
    cos: str
    sin: str


class Part(NamedTuple):
    """Queries, keys or values, before the projection is split into heads."""

    x: str
    weight: str
    batch: int
    positions: int
    heads: int
    width: int
    rotary: Rotary | None


def fuse_for_gpu(
    nodes: Sequence[NodeProto], graph: Graph, program: Program, shapes: Shapes
) -> list[NodeProto]:
    """Equivalent, fused nodes.

    Attention within a patch becomes one node, with one product for queries, keys and values. In other attention,
    projections are merged, rotary embeddings and scaled products become one node each, and scatters share indices. A
    sum and its RMSNorm become one node.
    """
    view = View(nodes, graph, shapes, program.weights)
    for rewrite in (_fuse_attention, _merge_products, _fuse, _fuse_sum_and_norm):
        nodes = [new for node in nodes for new in rewrite(view, node) or [node]]
        view.read(nodes)
    return list(nodes)


def _fuse_attention(view: View, node: NodeProto) -> list[NodeProto] | None:
    """The fusion of attention that ends with the output projection `node`; None for another node.

    `MultiHeadAttention` takes queries, keys and values as three parts of a rotated product. Query heads that share a
    key head become rows of a sequence, for which weights are reordered when the graph is loaded. On CUDA it accumulates
    in float32.
    """
    if not is_product(node) or not view.is_fixed(node.input[1]):
        return None
    names = view.match(_PATCH_ATTENTION, "rows", node.input[0])
    if names is None or not is_product(view.producers[names["scores"]]):
        return None
    q, k, v = (_part(view, names[key]) for key in ("turned_queries", "keys", "values"))
    scale = view.number(names["factor"])
    if not (q and k and v and scale) or not _fits(view, q, k, v):
        return None
    start, graph, integers = len(view.graph.nodes), view.graph, view.graph.integers
    groups = q.heads // k.heads
    grouped = (k.heads, groups, k.width)
    in_rows = _reorder(view, q.weight, (*grouped, -1), (1, 0, 2, 3), (q.heads * k.width, -1))
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
    weight = _reorder(view, node.input[1], (-1, *grouped), (0, 2, 1, 3), (-1, q.heads * k.width))
    result = graph.emit("FusedMatMul", rows, weight, domain=CONTRIB, transB=1)
    return view.take(start, result, node.output[0])


def _part(view: View, value: str) -> Part | None:
    found = _rotary(view, value)
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
    """Whether the kernel supports this attention: a fixed number of positions, rotated by constants."""
    rotations = (part.rotary for part in (q, k, v) if part.rotary is not None)
    return (
        q.width == k.width == v.width
        and k.width % _HEAD_WIDTH_MULTIPLE == 0
        and k.heads == v.heads
        and q.heads % k.heads == 0
        and k.x == v.x
        and min(q.positions, k.positions) >= 1
        and all(_fixed_tables(view, found) is not None for found in rotations)
    )


def _products(view: View, parts: Sequence[Part]) -> list[str]:
    """Parts of one value as one product, each (B, S, heads · width), with their rotary embeddings."""
    graph, integers = view.graph, view.graph.integers
    weights = tuple(part.weight for part in parts)
    weight = weights[0]
    if len(parts) > 1:
        # Shared by all Euler steps.
        weight = view.shared(("weights", *weights), lambda: graph.emit("Concat", *weights, axis=0))
    product = graph.emit("FusedMatMul", parts[0].x, weight, domain=CONTRIB, transB=1)
    widths = [part.heads * part.width for part in parts]
    if any(part.rotary for part in parts):
        positions, heads = parts[0].positions, sum(part.heads for part in parts)
        # Every head of every position is a row with its own entry in the tables, so that one node rotates all parts.
        rows = graph.emit("Reshape", product, integers([-1, positions * heads, parts[0].width]))
        tables = _tables(view, parts)
        rows = graph.emit("RotaryEmbedding", rows, integers([0]), *tables, domain=CONTRIB)
        product = graph.emit("Reshape", rows, integers([-1, positions, sum(widths)]))
    if len(parts) == 1:
        return [product]
    # CUDA's Split copies pointers from the host for unequal parts, which is forbidden in a captured call, but not for
    # three parts of the last axis (kernel Split3Inner) or two equal ones.
    return graph.emit_many("Split", product, integers(widths), outputs=len(parts), axis=-1)


def _tables(view: View, parts: Sequence[Part]) -> list[str]:
    """Cosines and sines (positions · heads, width / 2); 1 and 0 for heads without rotary embedding."""
    half = parts[0].width // 2
    found = [_fixed_tables(view, part.rotary) if part.rotary else None for part in parts]
    dtype = next(tables[0].dtype for tables in found if tables is not None)

    def column(index: int) -> np.ndarray:
        by_head = []
        for part, own in zip(parts, found, strict=True):
            table = np.full((part.positions, half), 1.0 - index) if own is None else own[index]
            by_head.append(np.repeat(table[:, np.newaxis], part.heads, axis=1))
        return np.concatenate(by_head, axis=1).reshape(-1, half)

    return [view.graph.constant(column(index), dtype) for index in (0, 1)]


def _reorder(
    view: View, weight: str, split: Sequence[int], order: Sequence[int], shape: Sequence[int]
) -> str:
    """A weight with two of its axes swapped, computed when the graph is loaded."""
    graph, integers = view.graph, view.graph.integers

    def permuted() -> str:
        axes = graph.emit("Reshape", weight, integers(split))
        return graph.emit("Reshape", graph.emit("Transpose", axes, perm=list(order)), integers(shape))

    return view.shared(("reordered", weight, str(order)), permuted)


def _rotary(view: View, value: str) -> Rotary | None:
    """The rotary embedding that computes a value; None if none does."""
    node = view.producer(value, "Add")
    if node is None:
        return None
    for straight, permuted in (node.input, node.input[::-1]):
        for turn, sin in view.factors(permuted):
            x = _rotate_half(view, turn)
            cosines = [cos for other, cos in view.factors(straight) if other == x]
            if x is not None and cosines:
                return Rotary(x, cosines[0], sin)
    return None


def _rotate_half(view: View, value: str) -> str | None:
    """x, if the value is (−second half of x, first half of x), otherwise None."""
    concat = view.producer(value, "Concat")
    if concat is None or len(concat.input) != 2 or attribute(concat, "axis") not in (-1, 3):
        return None
    for second, sign in view.factors(concat.input[0]):
        split = view.producer(second, "Split")
        if split is not None and view.number(sign) == -1 and list(split.output) == [concat.input[1], second]:
            return str(split.input[0])
    return None


def _fixed_tables(view: View, found: Rotary) -> list[np.ndarray] | None:
    """Cosines and sines (positions, D / 2) if they are constants, otherwise None. Both halves of a table are equal."""
    tables = [view.constant(name) for name in (found.cos, found.sin)]
    halves = [
        np.ascontiguousarray(table.reshape(table.shape[-2:])[:, : table.shape[-1] // 2])
        for table in tables
        if table is not None
    ]
    return halves if len(halves) == 2 else None


def _fuse_rotary(view: View, node: NodeProto) -> list[NodeProto] | None:
    """One node for the rotary embedding that ends with a sum; None for another sum."""
    found = _rotary(view, node.output[0])
    if found is None:
        return None
    start, graph = len(view.graph.nodes), view.graph
    fixed = _fixed_tables(view, found)
    if fixed is None:
        tables = _gather_tables(view, found)
    else:
        tables = [graph.integers([0]), *(graph.constant(table, table.dtype) for table in fixed)]
    if not tables:
        return None
    result = graph.emit("RotaryEmbedding", found.x, *tables, domain=CONTRIB)
    return view.take(start, result, node.output[0])


def _gather_tables(view: View, found: Rotary) -> list[str]:
    """Positions (1, S), cosines and sines of gathered tables; empty for another form."""
    cos, sin = (view.producer(name, "Gather") for name in (found.cos, found.sin))
    table = None if cos is None else view.constant(cos.input[0])
    if cos is None or sin is None or table is None:
        return []
    graph, integers = view.graph, view.graph.integers
    root = view.root(cos.input[1])
    bounds = (integers([0]), integers([table.shape[-1] // 2]), integers([-1]))

    def positions() -> str:
        return graph.emit("Unsqueeze", graph.emit("Cast", root, to=TensorProto.INT64), integers([0]))

    def half(name: str) -> str:  # sliced when the graph is loaded, as tables may be large
        return view.shared(("half", name), lambda: graph.emit("Slice", name, *bounds))

    return [view.shared(("positions", root), positions), half(cos.input[0]), half(sin.input[0])]


def _merge_products(view: View, node: NodeProto) -> list[NodeProto] | None:
    """Products of one value with constants, each split into heads, merged into one at the last of them."""
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
    # Not Split: CUDA's copies pointers from the host for unequal parts, which is forbidden in a captured call.
    ends = np.cumsum([size[2] for size in sizes]).tolist()
    for begin, end in zip([0, *ends], ends, strict=False):
        graph.emit("Slice", heads, integers([begin]), integers([end]), integers([1]))
    new = view.take(start)
    # The original products become unused.
    for part, transpose in zip(new[-len(group) :], transposes, strict=True):
        part.output[:] = [transpose.output[0]]
        transpose.output[:] = [graph.name("unread")]
    return new


def _group(view: View, node: NodeProto) -> list[NodeProto]:
    """The products of a node's first input that can be merged, in order; empty if the node is none of them."""
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
    """(batch, positions, heads, width) of a product with a constant that is only split into heads; or empty."""
    if not is_product(node) or not view.is_fixed(node.input[1]):
        return []
    reshape = view.only_reader(node, "Reshape")
    transpose = None if reshape is None else view.only_reader(reshape, "Transpose")
    if reshape is None or transpose is None or permutation(transpose) != HEADS_FIRST:
        return []
    return view.heads(reshape)


def _fuse(view: View, node: NodeProto) -> list[NodeProto] | None:
    """The fusion of a node with its producers; None if there is none."""
    if node.op_type == "Add":
        return _fuse_rotary(view, node)
    if node.op_type in ("MatMul", "FusedMatMul"):
        return _fuse_scale(view, node)
    if node.op_type == "ScatterElements":
        _share_indices(view, node)
    return None


def _share_indices(view: View, node: NodeProto) -> None:
    """Share the indices among scatters of the same positions into caches of one shape."""
    expanded = view.producer(node.input[1], "Expand")
    column = view.producer(expanded.input[0], "Reshape") if expanded is not None else None
    shape = view.shapes.get(node.input[0])
    if column is not None and shape is not None:
        key = ("indices", view.root(column.input[0]), column.input[1], str(shape))
        node.input[1] = view.made.setdefault(key, node.input[1])


def _fuse_scale(view: View, node: NodeProto) -> list[NodeProto] | None:
    """(x · constant), reshaped, times y, with the constant as the product's `alpha`."""
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
            return view.take(start, result, node.output[0])
    return None


def _fuse_sum_and_norm(view: View, node: NodeProto) -> list[NodeProto] | None:
    """A sum on the residual path, fused with the RMSNorm that reads it.

    ONNX Runtime 1.31 accumulates squares in float32 (see `device._OPTIONS`).
    """
    if node.op_type != "Add":
        return None
    first, second = (view.shapes.get(name) for name in node.input)
    if first is None or first != second or len(first) not in (2, 3):
        return None
    readers = view.readers.get(node.output[0], [])
    norms = [reader for reader in readers if reader.op_type == "SimplifiedLayerNormalization"]
    # The norm moves to this place, so its weight must not be computed later.
    if len(norms) != 1 or norms[0].input[1] in view.producers:
        return None
    epsilon = next(a.f for a in norms[0].attribute if a.name == "epsilon")
    start = len(view.graph.nodes)
    inputs = (*node.input, norms[0].input[1])
    view.graph.emit_many(
        "SkipSimplifiedLayerNormalization", *inputs, outputs=4, domain=CONTRIB, epsilon=epsilon
    )
    new = view.take(start)
    new[-1].output[:] = [norms[0].output[0], "", "", node.output[0]]
    norms[0].output[:] = [view.graph.name("unread")]
    return new
