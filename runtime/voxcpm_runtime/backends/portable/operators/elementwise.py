"""Arithmetic, comparison, activation and cast: operations on each element alone, with broadcasting."""

from __future__ import annotations

import math

from onnx import helper

from voxcpm_runtime.backends.portable.graph import Call, Operator
from voxcpm_runtime.backends.portable.lowered import graph_dtype

UNARY = {
    "abs": "Abs",
    "cos": "Cos",
    "exp": "Exp",
    "round": "Round",
    "sigmoid": "Sigmoid",
    "sin": "Sin",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
}

BINARY = {
    "add": "Add",
    "equal": "Equal",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "logical_and": "And",
    "maximum": "Max",
    "minimum": "Min",
    "mul": "Mul",
    "real_div": "Div",
    "sub": "Sub",
}

# MIL's names of element types in casts → its names elsewhere.
CAST_TARGETS = {
    "fp16": "FLOAT16",
    "fp32": "FLOAT32",
    "int8": "INT8",
    "uint8": "UINT8",
    "int16": "INT16",
    "uint16": "UINT16",
    "int32": "INT32",
    "bool": "BOOL",
}


def _unary(kind: str) -> Operator:
    return lambda call: call.emit(kind, call.tensor("x"))


def _binary(kind: str) -> Operator:
    return lambda call: call.emit(kind, call.tensor("x"), call.tensor("y"))


def _cast(call: Call) -> str:
    target = call.static("dtype")
    if target not in CAST_TARGETS:
        raise call.refuse(f"dtype {target}")
    # coremltools narrows shape values to 16 bits; they fit, so every integer type is int32 in the graph.
    dtype = graph_dtype(CAST_TARGETS[target], call.mode)
    return call.emit("Cast", call.tensor("x"), to=helper.np_dtype_to_tensor_dtype(dtype))


def _clip(call: Call) -> str:
    """min(max(x, alpha), beta); an infinite bound (torch's clamp with one side open) costs nothing."""
    x = call.tensor("x")
    alpha, beta = call.static("alpha", -math.inf), call.static("beta", math.inf)
    x = call.emit("Max", x, call.scalar_like("x", alpha)) if alpha > -math.inf else x
    return call.emit("Min", x, call.scalar_like("x", beta)) if beta < math.inf else call.emit("Identity", x)


def _pow(call: Call) -> str:
    x = call.tensor("x")
    if call.is_constant("y") and call.static("y") == 2:
        return call.emit("Mul", x, x)
    return call.emit("Pow", x, call.tensor("y"))


def _rsqrt(call: Call) -> str:
    """1 / sqrt(x + epsilon)."""
    shifted = call.emit("Add", call.tensor("x"), call.scalar_like("x", call.static("epsilon", 1e-12)))
    return call.emit("Reciprocal", call.emit("Sqrt", shifted))


def _select(call: Call) -> str:
    return call.emit("Where", call.tensor("cond"), call.tensor("a"), call.tensor("b"))


def _silu(call: Call) -> str:
    x = call.tensor("x")
    return call.emit("Mul", x, call.emit("Sigmoid", x))


def _square(call: Call) -> str:
    x = call.tensor("x")
    return call.emit("Mul", x, x)


OPERATORS: dict[str, Operator] = {
    **{mil: _unary(kind) for mil, kind in UNARY.items()},
    **{mil: _binary(kind) for mil, kind in BINARY.items()},
    "cast": _cast,
    "clip": _clip,
    "identity": lambda call: call.tensor("x"),
    "pow": _pow,
    "rsqrt": _rsqrt,
    "select": _select,
    "silu": _silu,
    "square": _square,
}
