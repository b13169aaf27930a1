"""Matrix products. In plain mode weights of 8 or 4 bits stay as they are."""

from __future__ import annotations

import numpy as np

from voxcpm_runtime.backends.portable.graph import CONTRIB, Call, Operator
from voxcpm_runtime.backends.portable.operators.integer_products import quantized_matmul


def _linear(call: Call) -> str:
    """X · weightᵀ + bias, weight (out_features, in_features)."""
    product = quantized_matmul(call, "weight", transposed=True)
    if product is None:
        # The contrib form multiplies by the transpose as it is stored: no transposed copy at load on a processor.
        product = call.emit("FusedMatMul", call.tensor("x"), call.tensor("weight"), domain=CONTRIB, transB=1)
    # coremltools gives a product without bias one of zeros.
    if not call.has("bias") or _is_zero(call, "bias"):
        return product
    return call.emit("Add", product, call.tensor("bias"))


def _is_zero(call: Call, name: str) -> bool:
    return call.is_constant(name) and not np.any(call.static(name))


def _matmul(call: Call) -> str:
    transpose_x, transpose_y = call.static("transpose_x", False), call.static("transpose_y", False)
    product = None if transpose_x else quantized_matmul(call, "y", transposed=transpose_y)
    if product is not None:
        return product
    x, y = call.tensor("x"), call.tensor("y")
    if not (transpose_x or transpose_y):
        return call.emit("MatMul", x, y)
    return call.emit("FusedMatMul", x, y, domain=CONTRIB, transA=int(transpose_x), transB=int(transpose_y))


OPERATORS: dict[str, Operator] = {"linear": _linear, "matmul": _matmul}
