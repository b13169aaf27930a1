"""Rewrites for a GPU: what becomes one node, and what stays as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, shape_inference

from voxcpm_runtime.backends.devices import Device
from voxcpm_runtime.backends.gpu.fusion import fuse_for_gpu
from voxcpm_runtime.backends.gpu.step_model import open_on_device
from voxcpm_runtime.backends.portable.graph import CONTRIB, Graph
from voxcpm_runtime.backends.portable.lowered import WeightRef
from voxcpm_runtime.backends.portable.lowering import IR_VERSION, OPSETS
from voxcpm_runtime.backends.portable.onnx_runtime import ort

# `device_checks.check_device` refuses GPUs with older ones, whose ONNX Runtime lacks some of these nodes.
pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="a GPU needs Python 3.11 or newer")

ROWS, WIDTH = 3, 256
SHAPES = {
    "x": (1, ROWS, WIDTH),
    "y": (1, ROWS, WIDTH),
    "row": (1, 1, WIDTH),
}
HALF = np.float16
NORM, SUM_AND_NORM = "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"


def norm(graph: Graph, x: str, weight: str | None = None) -> str:
    weight = weight or graph.constant(1 + np.arange(WIDTH) / WIDTH, HALF)
    return graph.emit(NORM, x, weight, axis=-1, epsilon=1e-5)


def residual(graph: Graph) -> list[str]:
    total = graph.emit("Add", "x", "y")
    return [graph.emit("Add", total, norm(graph, total)), norm(graph, "x")]


def broadcast(graph: Graph) -> list[str]:
    return [norm(graph, graph.emit("Add", "x", "row"))]


def of_unknown_shape(graph: Graph) -> list[str]:
    return [norm(graph, graph.emit("Add", "x", graph.emit("QuickGelu", "y", domain=CONTRIB)))]


def two_norms(graph: Graph) -> list[str]:
    total = graph.emit("Add", "x", "y")
    return [norm(graph, total), norm(graph, total, graph.constant(np.ones(WIDTH), HALF))]


def computed_weight(graph: Graph) -> list[str]:
    total = graph.emit("Add", "x", "y")
    return [norm(graph, total, graph.emit("Neg", graph.constant(np.ones(WIDTH), HALF)))]


def fused(drawing: Callable[[Graph], list[str]]) -> tuple[list[str], list[np.ndarray], list[np.ndarray]]:
    """Kinds of the nodes that are needed after the rewrites, and the results before and after them."""
    plain, graph = Graph(), Graph()
    expected = run(plain, plain.nodes, drawing(plain))
    outputs = drawing(graph)
    known = shape_inference.infer_shapes(model(graph, graph.nodes, outputs)).graph
    shapes: dict[str, Any] = dict(SHAPES)
    dtypes = dict.fromkeys(SHAPES, np.dtype(HALF))
    for value in (*known.value_info, *known.output):
        type_ = value.type.tensor_type
        shapes[value.name] = tuple(d.dim_value for d in type_.shape.dim) if type_.HasField("shape") else None
        dtypes[value.name] = helper.tensor_dtype_to_np_dtype(type_.elem_type)
    nodes = fuse_for_gpu(list(graph.nodes), graph, no_weights, shapes, dtypes)
    return kinds(nodes, outputs), expected, run(graph, nodes, outputs)


def no_weights(ref: WeightRef) -> np.ndarray:
    raise AssertionError(ref)


def kinds(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> list[str]:
    needed, found = set(outputs), []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            found.append(node.op_type)
    return sorted(found)


def model(graph: Graph, nodes: Sequence[NodeProto], outputs: Sequence[str]) -> ModelProto:
    half = TensorProto.FLOAT16
    drawn = helper.make_graph(
        nodes, "drawn",
        [helper.make_tensor_value_info(name, half, shape) for name, shape in SHAPES.items()],
        [helper.make_tensor_value_info(name, half, None) for name in outputs],
        list(graph.initializers.values()),
    )  # fmt: skip
    opsets = [helper.make_opsetid(*opset) for opset in OPSETS]
    return helper.make_model(drawn, opset_imports=opsets, ir_version=IR_VERSION)


def opened(graph: Graph, nodes: Sequence[NodeProto], outputs: Sequence[str]) -> ort.InferenceSession:
    return open_on_device(model(graph, nodes, outputs).SerializeToString(), [], [], Device("cpu"))[0]


def run(graph: Graph, nodes: Sequence[NodeProto], outputs: Sequence[str]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(HALF) for name, shape in SHAPES.items()}
    results: list[np.ndarray] = opened(graph, nodes, outputs).run(list(outputs), feeds)
    return results


def test_a_sum_and_its_norm_are_one_node() -> None:
    nodes, expected, results = fused(residual)
    # The second norm has no sum before it.
    assert nodes == ["Add", NORM, SUM_AND_NORM]
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, atol=0.01)


@pytest.mark.parametrize("drawing", [broadcast, of_unknown_shape, two_norms, computed_weight])
def test_another_sum_stays(drawing: Callable[[Graph], list[str]]) -> None:
    nodes, expected, results = fused(drawing)
    assert SUM_AND_NORM not in nodes
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)
