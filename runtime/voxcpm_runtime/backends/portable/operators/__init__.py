"""MIL operation type → the function that emits its ONNX nodes. CONTRIBUTING.md explains how to add one."""

from voxcpm_runtime.backends.portable.graph import Operator
from voxcpm_runtime.backends.portable.operators import arithmetic, layout, products, weights

OPERATORS: dict[str, Operator] = {
    **arithmetic.OPERATORS,
    **products.OPERATORS,
    **layout.OPERATORS,
    **weights.OPERATORS,
}
DEQUANTIZERS = weights.DEQUANTIZERS

# Operations that only move values: their results on fp16 tensors need no rounding.
VALUE_PRESERVING = frozenset({*layout.OPERATORS, "identity"})

__all__ = ["DEQUANTIZERS", "OPERATORS", "VALUE_PRESERVING"]
