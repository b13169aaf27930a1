"""The nodes of a lowered graph that a GPU launches in every call."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx

from voxcpm_runtime.backends.portable.lowering import lower


def launched_nodes(package: Path) -> Counter[str]:
    """How many there are of each kind in half mode, without those that are computed when the graph is loaded."""
    lowered = lower(package, mode="half")
    graph = onnx.load_from_string(lowered.model).graph
    fixed = {"", *(tensor.name for tensor in graph.initializer), *(ref.name for ref in lowered.weights)}
    counts: Counter[str] = Counter()
    for node in graph.node:
        if fixed.issuperset(node.input):
            fixed.update(node.output)
        else:
            counts[node.op_type] += 1
    return counts
