"""MIL operation type → the function that emits its ONNX nodes; each module has a table for one kind of operation.

To add an operation, write a function `(Call) -> ONNX name(s)` in the module it belongs to and enter it in that
module's OPERATORS. An attribute value that has no ONNX form is refused with `call.refuse`.
"""

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
