"""Operations that rearrange, join, repeat or create tensors without arithmetic on their values."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

from voxcpm_runtime.portable.graph import Call, Operator
from voxcpm_runtime.portable.lowered import GRAPH_DTYPES

PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}


def _concat(call: Call) -> str:
    if call.static("interleave", False):
        raise call.refuse("interleave")
    return call.emit("Concat", *call.tensors("values"), axis=call.static("axis"))


def _expand_dims(call: Call) -> str:
    return call.emit("Unsqueeze", call.tensor("x"), call.indices("axes"))


def _fill(call: Call) -> str:
    return _filled(call, call.indices("shape"))


def _fill_like(call: Call) -> str:
    return _filled(call, call.emit("Shape", call.tensor("ref_tensor")))


def _filled(call: Call, shape: str) -> str:
    value = np.array([call.static("value", 0)], GRAPH_DTYPES[call.output_type().dtype])
    return call.emit("ConstantOfShape", shape, value=numpy_helper.from_array(value))


def _pad(call: Call) -> str:
    """MIL's pads are (before, after) for each of the last axes."""
    mode = call.static("mode", "constant")
    if mode not in PAD_MODES:
        raise call.refuse(f"mode {mode}")
    pad = call.static("pad")
    axes = call.graph.integers(range(-(len(pad) // 2), 0))
    amounts = call.graph.integers(pad[0::2] + pad[1::2])
    value = call.scalar(call.static("constant_val", 0), GRAPH_DTYPES[call.output_type().dtype])
    return call.emit("Pad", call.tensor("x"), amounts, value, axes, mode=PAD_MODES[mode])


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
    axis = call.static("axis")
    axes = call.graph.integers([axis])
    return call.emit("Concat", *(call.emit("Unsqueeze", x, axes) for x in call.tensors("values")), axis=axis)


def _tile(call: Call) -> str:
    return call.emit("Tile", call.tensor("x"), call.indices("reps"))


def _transpose(call: Call) -> str:
    rank = call.rank("x")
    return call.emit("Transpose", call.tensor("x"), perm=[axis % rank for axis in call.static("perm")])


OPERATORS: dict[str, Operator] = {
    "concat": _concat,
    "expand_dims": _expand_dims,
    "fill": _fill,
    "fill_like": _fill_like,
    "pad": _pad,
    "range_1d": _range,
    "reshape": _reshape,
    "shape": _shape,
    "split": _split,
    "squeeze": _squeeze,
    "stack": _stack,
    "tile": _tile,
    "transpose": _transpose,
}
