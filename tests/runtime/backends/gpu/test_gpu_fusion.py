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
from voxcpm_runtime.backends.gpu.sessions import open_on_device
from voxcpm_runtime.backends.portable.graph import CONTRIB, Graph
from voxcpm_runtime.backends.portable.lowered import WeightRef
from voxcpm_runtime.backends.portable.lowering import IR_VERSION, OPSETS
from voxcpm_runtime.backends.portable.onnx_runtime import ort

# `device_checks.check_device` refuses GPUs with older ones, whose ONNX Runtime lacks some of these nodes.
pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="a GPU needs Python 3.11 or newer")

ROWS, WIDTH = 3, 256
# Channels first: a convolution of 5 taps, with a dilation of 2.
CHANNELS, TAPS, DILATION = 4, 5, 2
CONTEXT = (TAPS - 1) * DILATION
SHAPES = {
    "x": (1, ROWS, WIDTH),
    "y": (1, ROWS, WIDTH),
    "row": (1, 1, WIDTH),
    "samples": (1, CHANNELS, 12),
    "context": (1, CHANNELS, CONTEXT),
}
HALF = np.float16
WHOLE = int(np.iinfo(np.int64).max)
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


def products(graph: Graph) -> list[str]:
    weight = graph.constant(np.arange(2.0 * WIDTH).reshape(2, WIDTH), HALF)
    return [graph.emit("FusedMatMul", x, weight, domain=CONTRIB, transB=1) for x in ("x", "y")]


def products_of_other_axes(graph: Graph) -> list[str]:
    weight = graph.constant(np.ones((1, 2, WIDTH)), HALF)
    return [graph.emit("FusedMatMul", "x", weight, domain=CONTRIB, transB=1)]


def other_products(graph: Graph) -> list[str]:
    weight = graph.constant(np.arange(2.0 * WIDTH).reshape(2, WIDTH), HALF)
    scaled = graph.emit("FusedMatMul", "x", weight, domain=CONTRIB, transB=1, alpha=0.5)
    return [scaled, graph.emit("FusedMatMul", "x", "y", domain=CONTRIB, transB=1)]


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


def test_a_fixed_weight_is_turned_once() -> None:
    nodes, expected, results = fused(products)
    assert nodes == ["MatMul", "MatMul", "Transpose"]
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0.01)


def test_other_products_stay() -> None:
    assert fused(products_of_other_axes)[0] == ["FusedMatMul"]
    assert fused(other_products)[0] == ["FusedMatMul", "FusedMatMul"]


def silu(graph: Graph, x: str) -> str:
    return graph.emit("Mul", x, graph.emit("Sigmoid", x))


def gated(graph: Graph) -> list[str]:
    # Large ones, too: the mean square is far from what could be seen beside the epsilon.
    large = graph.emit("Mul", "y", graph.constant([100], HALF))
    return [graph.emit("Mul", silu(graph, "x"), "y"), graph.emit("Mul", large, silu(graph, large))]


def gated_by_a_row(graph: Graph) -> list[str]:
    return [graph.emit("Mul", silu(graph, "x"), "row")]


def gated_by_another(graph: Graph) -> list[str]:
    return [graph.emit("Mul", graph.emit("Mul", "x", graph.emit("Sigmoid", "y")), "y")]


def gated_narrowly(graph: Graph) -> list[str]:
    """One large number would fill the group, and be made smaller."""
    x, y = (graph.emit("Slice", name, *map(graph.integers, ([0], [96], [-1]))) for name in ("x", "y"))
    return [graph.emit("Mul", silu(graph, x), y)]


def gated_in_float32(graph: Graph) -> list[str]:
    x, y = (graph.emit("Cast", name, to=TensorProto.FLOAT) for name in ("x", "y"))
    return [graph.emit("Cast", graph.emit("Mul", silu(graph, x), y), to=TensorProto.FLOAT16)]


def test_silu_and_its_product_are_one_node() -> None:
    nodes, expected, results = fused(gated)
    assert nodes == ["GatedRMSNorm", "GatedRMSNorm", "Mul"]
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0.003, atol=1e-4)


@pytest.mark.parametrize("drawing", [gated_by_a_row, gated_by_another, gated_narrowly, gated_in_float32])
def test_another_product_stays(drawing: Callable[[Graph], list[str]]) -> None:
    assert "GatedRMSNorm" not in fused(drawing)[0]


def convolved(
    graph: Graph, *, channels_in: int = 1, start: int = 12, end: int = WHOLE, steps: bool = True, **more: Any
) -> list[str]:
    rng = np.random.default_rng(1)
    weight = graph.constant(rng.standard_normal((CHANNELS, channels_in, TAPS)), HALF)
    bias = graph.constant(rng.standard_normal(CHANNELS), HALF)
    joined = graph.emit("Concat", "context", "samples", axis=-1)
    given = {
        "group": CHANNELS // channels_in,
        "dilations": [DILATION],
        "pads": [0, 0],
        "strides": [1],
        **more,
    }
    bounds = [
        graph.integers(numbers) for numbers in ([0, 0, start], [WHOLE, end, WHOLE], [0, 1, 2], [1, 1, 1])
    ]
    bounds = bounds if steps else bounds[:-1]
    return [graph.emit("Conv", joined, weight, bias, **given), graph.emit("Slice", joined, *bounds)]


@pytest.mark.parametrize("steps", [True, False])
def test_a_causal_convolution_and_its_contexts_are_one_node(steps: bool) -> None:
    nodes, (samples, left), results = fused(lambda graph: convolved(graph, steps=steps))
    assert nodes == ["CausalConvWithState"]
    np.testing.assert_allclose(results[0], samples, rtol=0.01, atol=0.01)
    np.testing.assert_array_equal(results[1], left)
    assert left.shape == SHAPES["context"]


def test_a_last_convolution_leaves_no_context() -> None:
    nodes, (samples,), (result,) = fused(lambda graph: convolved(graph)[:1])
    assert nodes == ["CausalConvWithState"]
    np.testing.assert_allclose(result, samples, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
    "other",
    [
        {"channels_in": CHANNELS},
        {"start": 11},
        {"end": 1},
        {"strides": [2]},
        {"pads": [1, 1]},
        {"dilations": [1]},
    ],
    ids=str,
)
def test_another_convolution_stays(other: dict[str, Any]) -> None:
    nodes, expected, results = fused(lambda graph: convolved(graph, **other))
    assert nodes == ["Concat", "Conv", "Slice"]
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_on_cuda_squares_are_added_up_in_float32() -> None:
    """ONNX Runtime 1.31 does so without that option, too, which asks for it all the same."""
    for kind in ("cuda", "tensorrt"):
        options = dict(Device(kind).providers())["CUDAExecutionProvider"]
        assert options["enable_skip_layer_norm_strict_mode"] == "1"


def test_a_session_for_a_gpu_times_its_products() -> None:
    graph = Graph()
    session = opened(graph, graph.nodes, products(graph))
    assert session.get_session_options().get_session_config_entry("ep.cuda.enable_gemm_auto_tune") == "1"
