"""Formulas found in a graph: a table of operations and operands, and where a graph computes it.

A formula is a table: the name of each intermediate value → its operation and operands. Names that have no entry are
the formula's own inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import NodeProto, numpy_helper

from voxcpm_runtime.backends.portable.graph import Graph

Formula = Mapping[str, tuple[str, ...]]
Names = dict[str, str]

COMMUTATIVE = frozenset({"Add", "Max", "Mul"})


def matches(
    formula: Formula, key: str, value: str, names: Names, producers: Mapping[str, NodeProto]
) -> Iterator[Names]:
    """Every assignment of ONNX values to the formula's names that makes `key` the given value and continues `names`."""
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
    orders = [operands, operands[::-1]] if kind in COMMUTATIVE and operands[0] != operands[1] else [operands]
    for order in orders:
        found: list[Names] = [names]
        for operand, argument in zip(order, node.input, strict=True):
            found = [m for n in found for m in matches(formula, operand, argument, n, producers)]
        yield from found


def constant_value(graph: Graph, name: str) -> np.ndarray | None:
    """A constant stored in the graph; None for any other value."""
    tensor = graph.initializers.get(name)
    return None if tensor is None else numpy_helper.to_array(tensor)
