"""Operations that rearrange, split, join or count elements, without arithmetic on their values."""

from __future__ import annotations

from onnx import TensorProto

from voxcpm_runtime.backends.portable.graph import Call, Operator


def _concat(call: Call) -> str:
    """Tensors joined along an axis; scalars, which have none, make a vector."""
    if call.static("interleave", False):
        raise call.refuse("interleave")
    if 0 in call.ranks("values"):
        return _stacked(call, axis=0)
    return call.emit("Concat", *call.tensors("values"), axis=call.static("axis"))


def _expand_dims(call: Call) -> str:
    return call.emit("Unsqueeze", call.tensor("x"), call.indices("axes"))


def _range(call: Call) -> str:
    return call.emit("Range", call.tensor("start"), call.tensor("end"), call.tensor("step"))


def _reshape(call: Call) -> str:
    return call.emit("Reshape", call.tensor("x"), call.indices("shape"))


def _shape(call: Call) -> str:
    return call.emit("Cast", call.emit("Shape", call.tensor("x")), to=TensorProto.INT32)


def _split(call: Call) -> list[str]:
    axis = call.static("axis")
    count = len(call.operation.outputs)
    if call.has("split_sizes"):
        return call.graph.emit_many(
            "Split", call.tensor("x"), call.indices("split_sizes"), outputs=count, axis=axis
        )
    return call.graph.emit_many("Split", call.tensor("x"), outputs=count, axis=axis, num_outputs=count)


def _squeeze(call: Call) -> str:
    axes = [call.indices("axes")] if call.has("axes") else []
    return call.emit("Squeeze", call.tensor("x"), *axes)


def _stack(call: Call) -> str:
    return _stacked(call, call.static("axis"))


def _stacked(call: Call, axis: int) -> str:
    axes = call.graph.integers([axis])
    return call.emit("Concat", *(call.emit("Unsqueeze", x, axes) for x in call.tensors("values")), axis=axis)


def _transpose(call: Call) -> str:
    rank = call.rank("x")
    return call.emit("Transpose", call.tensor("x"), perm=[axis % rank for axis in call.static("perm")])


OPERATORS: dict[str, Operator] = {
    "concat": _concat,
    "expand_dims": _expand_dims,
    "range_1d": _range,
    "reshape": _reshape,
    "shape": _shape,
    "split": _split,
    "squeeze": _squeeze,
    "stack": _stack,
    "transpose": _transpose,
}
