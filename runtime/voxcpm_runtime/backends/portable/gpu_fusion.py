"""Rewrites of the half-mode graph for a GPU, where a node costs the launch of a kernel, whatever it computes.

Nodes that nothing reads any more stay in the list; they are dropped later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

from .graph import CONTRIB, Graph
from .lowered import WeightRef

Shapes = Mapping[str, tuple[int | None, ...] | None]

# (batch, positions, heads, width) -> (batch, heads, positions, width)
HEADS_FIRST = [0, 2, 1, 3]


def fuse_for_gpu(
    nodes: Sequence[NodeProto], graph: Graph, read: Callable[[WeightRef], np.ndarray], shapes: Shapes
) -> list[NodeProto]:
    """The nodes, with fewer of them for the same results.

    A rotary embedding and a scaled product become one node each; queries, keys and values one product; scatters share
    indices. read: the elements of a weight. shapes: of the graph's inputs and of values; None is an axis of several
    lengths. ONNX Runtime's node for a sum and its RMSNorm is not used: on CUDA it adds up squares in fp16.
    """
    rewriting = _Rewriting(nodes, graph, read, shapes)
    merged = [new for node in nodes for new in rewriting.merged(node)]
    rewriting.look_at(merged)
    return [new for node in merged for new in rewriting.replaced(node)]


class _Rewriting:
    def __init__(
        self,
        nodes: Sequence[NodeProto],
        graph: Graph,
        read: Callable[[WeightRef], np.ndarray],
        shapes: Shapes,
    ) -> None:
        self._graph = graph
        self._shapes = shapes
        self._read = read
        self._made: dict[tuple[str, ...], str] = {}
        """Values that several replacements share, by what they are made of."""
        self.look_at(nodes)

    def look_at(self, nodes: Sequence[NodeProto]) -> None:
        """Have the next pass read these nodes."""
        self._producers = {output: node for node in nodes for output in node.output}
        self._readers: dict[str, list[NodeProto]] = {}
        for node in nodes:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._order = {id(node): index for index, node in enumerate(nodes)}

    def merged(self, node: NodeProto) -> list[NodeProto]:
        """Products of one value, each with a constant and each split into heads, as one product where the last was."""
        group = self._group(node)
        if len(group) < 2 or group[-1] is not node:
            return [node]
        reshapes = [self._readers[product.output[0]][0] for product in group]
        transposes = [self._readers[reshape.output[0]][0] for reshape in reshapes]
        if min(self._order[id(t)] for t in transposes) < self._order[id(node)]:
            return [node]
        sizes = [self._heads(reshape) for reshape in reshapes]
        start, graph, integers = len(self._graph.nodes), self._graph, self._graph.integers
        weights = graph.emit("Concat", *(product.input[1] for product in group), axis=0)
        product = graph.emit("FusedMatMul", node.input[0], weights, domain=CONTRIB, transB=1)
        shape = [*sizes[0][:2], sum(size[2] for size in sizes), *sizes[0][3:]]
        heads = graph.emit("Transpose", graph.emit("Reshape", product, integers(shape)), perm=HEADS_FIRST)
        # Not Split: CUDA's copies pointers from the host for unequal parts, which a captured call must not.
        ends = np.cumsum([size[2] for size in sizes]).tolist()
        for begin, end in zip([0, *ends], ends, strict=False):
            graph.emit("Slice", heads, integers([begin]), integers([end]), integers([1]))
        new = graph.nodes[start:]
        del graph.nodes[start:]
        # The products that led to these stay unread.
        for part, transpose in zip(new[-len(group) :], transposes, strict=True):
            part.output[:] = [transpose.output[0]]
            transpose.output[:] = [graph.name("unread")]
        return new

    def _group(self, node: NodeProto) -> list[NodeProto]:
        """The products of a node's first input that can become one; empty if the node is none of them."""
        candidates = [other for other in self._readers.get(node.input[0], []) if self._into_heads(other)]
        same = [c for c in candidates if self._into_heads(node) and self._alike(c, node)]
        return sorted(same, key=lambda other: self._order[id(other)])

    def _into_heads(self, node: NodeProto) -> bool:
        if (
            node.op_type != "FusedMatMul"
            or not _attribute(node, "transB")
            or not self._is_fixed(node.input[1])
        ):
            return False
        reshape = self._only_reader(node, "Reshape")
        transpose = (
            self._only_reader(reshape, "Transpose") if reshape is not None and self._heads(reshape) else None
        )
        return transpose is not None and [*transpose.attribute[0].ints] == HEADS_FIRST

    def _alike(self, one: NodeProto, other: NodeProto) -> bool:
        first, second = (self._heads(self._readers[node.output[0]][0]) for node in (one, other))
        return first[:2] + first[3:] == second[:2] + second[3:] and one.input[0] == other.input[0]

    def _heads(self, reshape: NodeProto) -> list[int]:
        """(batch, positions, heads, width) of a reshape with a constant shape; empty for another."""
        shape = self._constant(reshape.input[1])
        return [] if shape is None or shape.size != len(HEADS_FIRST) or min(shape[2:]) < 1 else shape.tolist()

    def _only_reader(self, node: NodeProto, kind: str) -> NodeProto | None:
        readers = self._readers.get(node.output[0], [])
        return readers[0] if len(readers) == 1 and readers[0].op_type == kind else None

    def _is_fixed(self, value: str) -> bool:
        """Whether a value is the same in every call: a constant, or computed from such alone."""
        if value in self._graph.initializers or value in self._graph.weights:
            return True
        node = self._producers.get(value)
        return node is not None and all(self._is_fixed(name) for name in node.input if name)

    def replaced(self, node: NodeProto) -> list[NodeProto]:
        """What stands for a node: the node itself, or one that computes it and what led to it."""
        if node.op_type == "Add":
            return self._rotary(node) or [node]
        if node.op_type in ("MatMul", "FusedMatMul"):
            return self._scaled_product(node) or [node]
        if node.op_type == "ScatterElements":
            self._share_indices(node)
        return [node]

    def _share_indices(self, node: NodeProto) -> None:
        """Have scatters of the same positions into caches of one shape read the indices that the first one made."""
        expanded = self._producer(node.input[1], "Expand")
        column = self._producer(expanded.input[0], "Reshape") if expanded is not None else None
        shape = self._shapes.get(node.input[0])
        if column is not None and shape is not None:
            key = ("indices", self._root(column.input[0]), column.input[1], str(shape))
            node.input[1] = self._made.setdefault(key, node.input[1])

    def _rotary(self, node: NodeProto) -> list[NodeProto] | None:
        """x · cos + (−second half of x, first half of x) · sin, x (B, heads, S, D), cos and sin with equal halves."""
        for straight, turned in (node.input, node.input[::-1]):
            for turn, sin in self._factors(turned):
                x = self._turned(turn)
                cosines = [cos for other, cos in self._factors(straight) if other == x]
                if x is None or not cosines:
                    continue
                start = len(self._graph.nodes)
                tables = self._tables(cosines[0], sin)
                if tables is None:
                    del self._graph.nodes[start:]
                    continue
                result = self._graph.emit("RotaryEmbedding", x, *tables, domain=CONTRIB)
                return self._appended(start, result, node.output[0])
        return None

    def _turned(self, value: str) -> str | None:
        """x, if the value is (−second half of x, first half of x)."""
        concat = self._producer(value, "Concat")
        if concat is None or len(concat.input) != 2 or _attribute(concat, "axis") not in (-1, 3):
            return None
        for second, sign in self._factors(concat.input[0]):
            constant = self._constant(sign)
            split = self._producer(second, "Split")
            halves = list(split.output) if split is not None else []
            if constant is None or constant.size != 1 or constant.item() != -1:
                continue
            if (
                split is not None
                and halves == [concat.input[1], second]
                and _attribute(split, "axis") in (-1, 3)
            ):
                return str(split.input[0])
        return None

    def _tables(self, cos: str, sin: str) -> tuple[str, str, str] | None:
        """Positions and tables of half width that RotaryEmbedding takes; None for cosines of another form."""
        fixed = [self._constant(value) for value in (cos, sin)]
        if all(table is not None for table in fixed):
            halves = [self._half(table) for table in fixed if table is not None]
            if any(half is None for half in halves):
                return None
            first, second = (self._graph.constant(half, half.dtype) for half in halves if half is not None)
            return self._graph.integers([0]), first, second
        gathers = [self._producer(value, "Gather") for value in (cos, sin)]
        tables = [None if g is None or _attribute(g, "axis") else self._constant(g.input[0]) for g in gathers]
        roots = {self._root(g.input[1]) for g in gathers if g is not None}
        if len(roots) != 1 or any(table is None for table in tables):
            return None
        if len(self._shapes.get(next(iter(roots))) or ()) != 1:
            return None  # a batch: positions of several utterances
        halves = [self._half(table) for table in tables if table is not None]
        if any(half is None for half in halves):
            return None
        sliced = [
            self._sliced(g.input[0], half)
            for g, half in zip(gathers, halves, strict=True)
            if g and half is not None
        ]
        return self._positions(roots.pop()), sliced[0], sliced[1]

    def _half(self, table: np.ndarray) -> np.ndarray | None:
        """(positions, D / 2) of a table (..., positions, D) with equal halves."""
        if table.ndim < 2 or any(size != 1 for size in table.shape[:-2]) or table.shape[-1] % 2:
            return None
        first, second = np.split(table.reshape(table.shape[-2:]), 2, axis=-1)
        return np.ascontiguousarray(first) if np.array_equal(first, second) else None

    def _sliced(self, name: str, half: np.ndarray) -> str:
        """The first half of a table's columns, cut when the graph is loaded: tables may be large."""
        integers = self._graph.integers
        key = ("half", name)
        if key not in self._made:
            self._made[key] = self._graph.emit(
                "Slice", name, integers([0]), integers([half.shape[-1]]), integers([-1])
            )
        return self._made[key]

    def _positions(self, root: str) -> str:
        """Positions (S,) as RotaryEmbedding takes them: int64 (1, S)."""
        key = ("positions", root)
        if key not in self._made:
            whole = self._graph.emit("Cast", root, to=TensorProto.INT64)
            self._made[key] = self._graph.emit("Unsqueeze", whole, self._graph.integers([0]))
        return self._made[key]

    def _scaled_product(self, node: NodeProto) -> list[NodeProto] | None:
        """(x · constant), reshaped, times y: the constant becomes the product's own factor."""
        reshape = self._producer(node.input[0], "Reshape")
        for x, factor in self._factors(reshape.input[0]) if reshape is not None else ():
            constant = self._constant(factor)
            if constant is None or constant.size != 1 or reshape is None:
                continue
            start = len(self._graph.nodes)
            flags = {key: int(_attribute(node, key) or 0) for key in ("transA", "transB")}
            shaped = self._graph.emit("Reshape", x, reshape.input[1])
            alpha = float(constant.item())
            result = self._graph.emit(
                "FusedMatMul", shaped, node.input[1], domain=CONTRIB, alpha=alpha, **flags
            )
            return self._appended(start, result, node.output[0])
        return None

    def _appended(self, start: int, result: str, output: str) -> list[NodeProto]:
        """The nodes emitted since `start`, taken out of the graph, of which the last one gets another output name."""
        new = self._graph.nodes[start:]
        del self._graph.nodes[start:]
        new[-1].output[list(new[-1].output).index(result)] = output
        return new

    def _factors(self, value: str) -> list[tuple[str, str]]:
        """Both orders of a product's factors; none for another value."""
        product = self._producer(value, "Mul")
        return [] if product is None else [tuple(product.input), tuple(product.input[::-1])]

    def _root(self, value: str) -> str:
        """The value before any casts."""
        while (cast := self._producer(value, "Cast")) is not None:
            value = cast.input[0]
        return value

    def _producer(self, value: str, kind: str) -> NodeProto | None:
        node = self._producers.get(value)
        return node if node is not None and node.op_type == kind else None

    def _constant(self, name: str) -> np.ndarray | None:
        """Elements of a constant, in the graph or in weight.bin; None for any other value."""
        if name in self._graph.initializers:
            return numpy_helper.to_array(self._graph.initializers[name])
        return self._read(self._graph.weights[name]) if name in self._graph.weights else None


def _attribute(node: NodeProto, name: str) -> int | None:
    return next((int(a.i) for a in node.attribute if a.name == name), None)
