"""Arithmetic, comparison, activation and cast: operations on each element alone, with broadcasting."""

from __future__ import annotations

import math

from onnx import TensorProto

from voxcpm_runtime.portable.graph import Call, Operator

UNARY = {
    "abs": "Abs",
    "ceil": "Ceil",
    "cos": "Cos",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "identity": "Identity",
    "logical_not": "Not",
    "relu": "Relu",
    "round": "Round",
    "sigmoid": "Sigmoid",
    "sign": "Sign",
    "sin": "Sin",
    "softplus": "Softplus",
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
    "logical_or": "Or",
    "logical_xor": "Xor",
    "maximum": "Max",
    "minimum": "Min",
    "mul": "Mul",
    "real_div": "Div",
    "sub": "Sub",
}

# coremltools narrows shape values to 16 bits; they fit, so every integer type is int32 here.
CAST_TARGETS = {
    "fp16": TensorProto.FLOAT,
    "fp32": TensorProto.FLOAT,
    "int8": TensorProto.INT32,
    "uint8": TensorProto.INT32,
    "int16": TensorProto.INT32,
    "uint16": TensorProto.INT32,
    "int32": TensorProto.INT32,
    "bool": TensorProto.BOOL,
}

GELU_MODES = {"EXACT": "none", "TANH_APPROXIMATION": "tanh"}


def _unary(kind: str) -> Operator:
    return lambda call: call.emit(kind, call.tensor("x"))


def _binary(kind: str) -> Operator:
    return lambda call: call.emit(kind, call.tensor("x"), call.tensor("y"))


def _cast(call: Call) -> str:
    target = call.static("dtype")
    if target not in CAST_TARGETS:
        raise call.refuse(f"dtype {target}")
    return call.emit("Cast", call.tensor("x"), to=CAST_TARGETS[target])


def _clip(call: Call) -> str:
    """min(max(x, alpha), beta); an infinite bound (torch's clamp with one side open) costs nothing."""
    x = call.tensor("x")
    alpha, beta = call.static("alpha", -math.inf), call.static("beta", math.inf)
    x = call.emit("Max", x, call.scalar(alpha)) if alpha > -math.inf else x
    return call.emit("Min", x, call.scalar(beta)) if beta < math.inf else call.emit("Identity", x)


def _floor_div(call: Call) -> str:
    """Rounds towards minus infinity, as Python's //; ONNX's integer Div truncates, so integers go through Mod."""
    x, y = call.tensor("x"), call.tensor("y")
    if _is_float(call):
        return call.emit("Floor", call.emit("Div", x, y))
    return call.emit("Div", call.emit("Sub", x, call.emit("Mod", x, y)), y)


def _gelu(call: Call) -> str:
    mode = call.static("mode", "EXACT")
    if mode not in GELU_MODES:
        raise call.refuse(f"mode {mode}")
    return call.emit("Gelu", call.tensor("x"), approximate=GELU_MODES[mode])


def _inverse(call: Call) -> str:
    """1 / (x + epsilon)."""
    return call.emit("Reciprocal", _with_epsilon(call, 1e-4))


def _log(call: Call) -> str:
    """log(x + epsilon)."""
    return call.emit("Log", _with_epsilon(call, 1e-45))


def _mod(call: Call) -> str:
    """Takes the sign of the divisor, as Python's %; ONNX's Mod does so for integers only."""
    x, y = call.tensor("x"), call.tensor("y")
    if not _is_float(call):
        return call.emit("Mod", x, y)
    return call.emit("Sub", x, call.emit("Mul", call.emit("Floor", call.emit("Div", x, y)), y))


def _not_equal(call: Call) -> str:
    return call.emit("Not", call.emit("Equal", call.tensor("x"), call.tensor("y")))


def _pow(call: Call) -> str:
    x = call.tensor("x")
    if call.is_constant("y") and call.static("y") == 2:
        return call.emit("Mul", x, x)
    return call.emit("Pow", x, call.tensor("y"))


def _rsqrt(call: Call) -> str:
    """1 / sqrt(x + epsilon)."""
    return call.emit("Reciprocal", call.emit("Sqrt", _with_epsilon(call, 1e-12)))


def _select(call: Call) -> str:
    return call.emit("Where", call.tensor("cond"), call.tensor("a"), call.tensor("b"))


def _silu(call: Call) -> str:
    x = call.tensor("x")
    return call.emit("Mul", x, call.emit("Sigmoid", x))


def _square(call: Call) -> str:
    x = call.tensor("x")
    return call.emit("Mul", x, x)


def _with_epsilon(call: Call, default: float) -> str:
    epsilon = call.static("epsilon", default)
    return call.emit("Add", call.tensor("x"), call.scalar(epsilon))


def _is_float(call: Call) -> bool:
    return call.output_type().dtype in {"FLOAT16", "FLOAT32"}


OPERATORS: dict[str, Operator] = {
    **{mil: _unary(kind) for mil, kind in UNARY.items()},
    **{mil: _binary(kind) for mil, kind in BINARY.items()},
    "cast": _cast,
    "clip": _clip,
    "floor_div": _floor_div,
    "gelu": _gelu,
    "inverse": _inverse,
    "log": _log,
    "mod": _mod,
    "not_equal": _not_equal,
    "pow": _pow,
    "rsqrt": _rsqrt,
    "select": _select,
    "silu": _silu,
    "square": _square,
}
