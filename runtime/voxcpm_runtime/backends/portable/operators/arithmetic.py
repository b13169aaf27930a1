"""Elementwise operations, reductions, and other arithmetic along an axis."""

from __future__ import annotations

from typing import Any

from onnx import helper

from voxcpm_runtime.backends.portable.graph import Call, Operator
from voxcpm_runtime.backends.portable.lowered import GRAPH_DTYPES

_UNARY = ("Abs", "Cos", "Exp", "Round", "Sigmoid", "Sin", "Sqrt", "Tanh")  # In MIL in small letters
_BINARY = {
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
    "pow": "Pow",
    "real_div": "Div",
    "sub": "Sub",
}
_REDUCTIONS = {"reduce_max": "ReduceMax", "reduce_mean": "ReduceMean", "reduce_sum": "ReduceSum"}

# Target of a cast → MIL element type. coremltools may narrow integers, which are all int32 in the graph.
_CAST_TARGETS = {"fp16": "FLOAT16", "fp32": "FLOAT32", "bool": "BOOL"}


def _elementwise(kind: str, *inputs: str) -> Operator:
    """One node of these inputs."""
    return lambda call: call.emit(kind, *map(call.tensor, inputs))


def _reduction(kind: str) -> Operator:
    def reduce(call: Call) -> str:
        axes = call.integers(call.static("axes", list(range(call.rank("x")))))
        return call.emit(kind, call.tensor("x"), axes, keepdims=int(call.static("keep_dims", False)))

    return reduce


def _cast(call: Call) -> str:
    dtype = GRAPH_DTYPES[_CAST_TARGETS.get(call.static("dtype"), "INT32")]
    return call.emit("Cast", call.tensor("x"), to=helper.np_dtype_to_tensor_dtype(dtype))


def _cumsum(call: Call) -> str:
    flags: dict[str, Any] = {name: int(call.static(name, False)) for name in ("exclusive", "reverse")}
    return call.emit("CumSum", call.tensor("x"), call.integers(call.static("axis", 0)), **flags)


def _rsqrt(call: Call) -> str:
    """1 / sqrt(x + epsilon)."""
    epsilon = call.constant(call.static("epsilon", 1e-12), call.dtype("x"))
    return call.emit("Reciprocal", call.emit("Sqrt", call.emit("Add", call.tensor("x"), epsilon)))


def _silu(call: Call) -> str:
    x = call.tensor("x")
    return call.emit("Mul", x, call.emit("Sigmoid", x))


OPERATORS: dict[str, Operator] = {
    **{kind.lower(): _elementwise(kind, "x") for kind in _UNARY},
    **{mil: _elementwise(kind, "x", "y") for mil, kind in _BINARY.items()},
    **{mil: _reduction(kind) for mil, kind in _REDUCTIONS.items()},
    "cast": _cast,
    "cumsum": _cumsum,
    "identity": lambda call: call.tensor("x"),
    "rsqrt": _rsqrt,
    "select": _elementwise("Where", "cond", "a", "b"),
    "silu": _silu,
    "softmax": lambda call: call.emit("Softmax", call.tensor("x"), axis=call.static("axis", -1)),
    "square": _elementwise("Mul", "x", "x"),
}
