"""Producers, readers and constants of an ONNX graph under construction, for the GPU rewrites."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import NodeProto, numpy_helper

from voxcpm_runtime.backends.portable.graph import Graph
from voxcpm_runtime.backends.portable.lowering import Shapes
from voxcpm_runtime.backends.portable.rewrites import Formula, Names, matches

# (batch, positions, heads, width) -> (batch, heads, positions, width)
HEADS_FIRST = [0, 2, 1, 3]
_PLAIN_PRODUCT = {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0}


class View:
    """The nodes of a graph by their inputs and outputs.

    shapes: of inputs and values; None is a dynamic axis. weights: the memory-mapped weight file.
    """

    def __init__(
        self, nodes: Sequence[NodeProto], graph: Graph, shapes: Shapes, weights: np.ndarray | None
    ) -> None:
        self.graph, self.shapes, self._weights = graph, shapes, weights
        self.made: dict[tuple[str, ...], str] = {}
        """Values shared by several replacements, by key."""
        self.read(nodes)

    def read(self, nodes: Sequence[NodeProto]) -> None:
        """Index these nodes, for the next pass."""
        # Omitted inputs and outputs have an empty name.
        self.producers = {output: node for node in nodes for output in node.output if output}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in nodes:
            for name in filter(None, node.input):
                self.readers.setdefault(name, []).append(node)
        self.order = {id(node): index for index, node in enumerate(nodes)}

    def producer(self, value: str, kind: str) -> NodeProto | None:
        """The node that computes a value, if it is of that kind, otherwise None."""
        node = self.producers.get(value)
        return node if node is not None and node.op_type == kind else None

    def only_reader(self, node: NodeProto, kind: str) -> NodeProto | None:
        """The only reader of a node's first output, if it is of that kind, otherwise None."""
        readers = self.readers.get(node.output[0], [])
        return readers[0] if len(readers) == 1 and readers[0].op_type == kind else None

    def constant(self, name: str) -> np.ndarray | None:
        """Elements of a constant, in the graph or in weight.bin; None for any other value."""
        if name in self.graph.initializers:
            return numpy_helper.to_array(self.graph.initializers[name])
        if name in self.graph.weights and self._weights is not None:
            return self.graph.weights[name].view(self._weights)
        return None

    def number(self, name: str) -> float | None:
        """The value of a constant with one element; None for any other value."""
        constant = self.constant(name)
        return None if constant is None or constant.size != 1 else float(constant.item())

    def heads(self, reshape: NodeProto) -> list[int]:
        """(batch, positions, heads, width) of a reshape into heads with a constant shape; empty for another."""
        shape = self.constant(reshape.input[1])
        fits = shape is not None and shape.size == len(HEADS_FIRST) and min(shape[2:]) >= 1
        return shape.tolist() if shape is not None and fits else []

    def is_fixed(self, value: str) -> bool:
        """Whether a value is the same in every call: a constant, or computed from constants alone."""
        if value in self.graph.initializers or value in self.graph.weights:
            return True
        node = self.producers.get(value)
        return node is not None and all(self.is_fixed(name) for name in node.input if name)

    def factors(self, value: str) -> list[tuple[str, str]]:
        """Both orders of a product's factors; empty for another value."""
        product = self.producer(value, "Mul")
        return [] if product is None else [tuple(product.input), tuple(product.input[::-1])]

    def root(self, value: str) -> str:
        """The value before any casts."""
        while (cast := self.producer(value, "Cast")) is not None:
            value = cast.input[0]
        return value

    def match(self, formula: Formula, key: str, value: str) -> Names | None:
        """The ONNX names of a formula's values, if the graph computes `value` as its `key`, otherwise None."""
        return next(matches(formula, key, value, {}, self.producers), None)

    def shared(self, key: tuple[str, ...], emit: Callable[[], str]) -> str:
        """A value shared by several replacements, emitted once. key: identifies its computation."""
        if key not in self.made:
            self.made[key] = emit()
        return self.made[key]

    def take(self, start: int, result: str = "", output: str = "") -> list[NodeProto]:
        """Remove and return the nodes emitted since `start`; the last one's `result` is renamed to `output`."""
        new = self.graph.nodes[start:]
        del self.graph.nodes[start:]
        new[-1].output[:] = [output if name == result else name for name in new[-1].output]
        return new


def attribute(node: NodeProto, name: str) -> int | None:
    """An integer attribute of a node; None if it is missing."""
    return next((int(a.i) for a in node.attribute if a.name == name), None)


def permutation(transpose: NodeProto) -> list[int]:
    """The order of axes of a transposition."""
    return [*transpose.attribute[0].ints]


def is_product(node: NodeProto) -> bool:
    """Whether a node just multiplies its first input by the transpose of its second."""
    given = {a.name: a.f if a.name == "alpha" else a.i for a in node.attribute}
    return node.op_type == "FusedMatMul" and {**_PLAIN_PRODUCT, **given} == {**_PLAIN_PRODUCT, "transB": 1}
