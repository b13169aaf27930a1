"""The product by which the form of integer weights is chosen, and that both forms are the same bits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from voxcpm_runtime.backends.portable import signed_products
from voxcpm_runtime.backends.portable.graph import CONTRIB
from voxcpm_runtime.backends.portable.lowering import IR_VERSION, OPSETS
from voxcpm_runtime.backends.portable.onnx_runtime import ort


def product(weights: np.ndarray, rows: int) -> onnx.ModelProto:
    """rows (rows, n) uint8 around 128 times weights (n, m), int8 around 0 or uint8 around 128, in float32."""
    unsigned = weights.dtype == np.uint8
    zero = np.full(weights.shape[1], 128 if unsigned else 0, weights.dtype)
    constants = {
        "weights": weights,
        "step": np.float32(1),
        "scales": np.ones(weights.shape[1], np.float32),
        "zero": zero,
    }
    node = helper.make_node(
        "MatMulIntegerToFloat",
        ["rows", "weights", "step", "scales", "", "zero"],
        ["product"],
        domain=CONTRIB,
    )
    graph = helper.make_graph(
        [node],
        "main",
        [helper.make_tensor_value_info("rows", TensorProto.UINT8, [rows, weights.shape[0]])],
        [helper.make_tensor_value_info("product", TensorProto.FLOAT, [rows, weights.shape[1]])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return model(graph)


def model(graph: onnx.GraphProto) -> onnx.ModelProto:
    """A model of this graph, of the versions that lowered graphs have."""
    opsets = [helper.make_opsetid(*opset) for opset in OPSETS]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


@pytest.mark.skipif(not signed_products.exact(), reason="this processor has no exact signed product")
def test_both_forms_are_the_same_integers() -> None:
    generator = np.random.default_rng(0)
    weights = generator.integers(-127, 128, (1024, 96)).astype(np.int8)
    rows = generator.integers(0, 256, (18, 1024)).astype(np.uint8)
    results = []
    for form in (weights, (weights.view(np.uint8) ^ 0x80)):
        session = ort.InferenceSession(
            product(form, 18).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        results.append(session.run(None, {"rows": rows})[0])
    exact = rows.astype(np.int64) @ weights.astype(np.int64)
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], exact.astype(np.float32))
