"""Compressed weights: int8 with a scale a channel, from `linear_quantize_weights(mode="linear_symmetric")`.

All the arithmetic here has constant inputs, so ONNX Runtime does it once, when it loads the graph, straight from
the memory-mapped file.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from voxcpm_runtime.portable.graph import CONTRIB, Call, Operator
from voxcpm_runtime.portable.package import Blob, Operation

DEQUANTIZE = "constexpr_affine_dequantize"

# Activations are quantised in blocks of the same length: small blocks keep an outlier from coarsening its
# neighbours, large ones are a little faster (TRIALS.md). The first that divides the row length is taken.
BLOCK_SIZES = (32, 16)

# MatMulNBits computes with int8 activations at this level; at lower ones it unpacks to float32 and is far slower.
INT8_ACCURACY_LEVEL = 4


def quantized_matmul(call: Call, weight: str, transposed: bool) -> str | None:
    """X · W with W kept 8-bit, as one MatMulNBits; None when W is not an int8 weight that this form can hold.

    `weight` names the input that holds W: (out, in) when `transposed`, else (in, out).
    """
    operation = call.dequantized.get(call.reference(weight) or "")
    if operation is None or call.mode != "plain":
        return None
    data = operation.attributes["quantized_data"]
    channel_axis = 0 if transposed else 1
    if data.type.dtype != "INT8" or len(data.type.shape) != 2 or not isinstance(data.data, Blob):
        return None
    if _axis(call, operation) != channel_axis or np.any(call.array(operation.attributes["zero_point"])):
        return None
    columns, rows = data.data.shape[channel_axis], data.data.shape[1 - channel_axis]
    block = next((size for size in BLOCK_SIZES if rows % size == 0), None)
    if block is None:
        return None
    blocks = rows // block
    # Two's complement int8 with its top bit flipped is the same number as uint8 with zero point 128, the implied one.
    stored = call.graph.weight(data.data, np.dtype(np.uint8))
    stored = stored if transposed else call.emit("Transpose", stored, perm=[1, 0])
    flipped = call.emit("BitwiseXor", stored, call.scalar(0x80, np.uint8))
    packed = call.emit("Reshape", flipped, call.graph.integers([columns, blocks, block]))
    scales = np.broadcast_to(call.array(operation.attributes["scale"]).astype(np.float32), (columns,))
    column = call.graph.constant(scales.reshape(columns, 1), np.float32)
    scale = call.emit("Expand", column, call.graph.integers([columns, blocks]))
    return call.emit(
        "MatMulNBits", call.tensor("x"), packed, call.emit("Reshape", scale, call.graph.integers([-1])),
        domain=CONTRIB, K=rows, N=columns, bits=8, block_size=block, accuracy_level=INT8_ACCURACY_LEVEL,
    )  # fmt: skip


def _dequantize(call: Call) -> str:
    """(data − zero point) · scale in float32, along one axis."""
    attributes = call.operation.attributes
    data = attributes["quantized_data"]
    signed = {"INT8": np.dtype(np.int8), "UINT8": np.dtype(np.uint8)}.get(data.type.dtype)
    if signed is None:
        raise call.refuse(f"quantized_data of type {data.type.dtype}")
    if isinstance(data.data, Blob):
        stored = call.graph.weight(data.data, signed)
    else:
        stored = call.graph.constant(data.data, signed)
    shape = [1] * len(data.type.shape)
    shape[_axis(call, call.operation)] = -1
    value = call.emit("Cast", stored, to=TensorProto.FLOAT)
    zero_point, scale = (call.array(attributes[name]).astype(np.float32) for name in ("zero_point", "scale"))
    if np.any(zero_point):
        value = call.emit("Sub", value, call.graph.constant(zero_point.reshape(shape), np.float32))
    return call.emit("Mul", value, call.graph.constant(scale.reshape(shape), np.float32))


def _axis(call: Call, operation: Operation) -> int:
    return int(call.array(operation.attributes["axis"])) % len(
        operation.attributes["quantized_data"].type.shape
    )


OPERATORS: dict[str, Operator] = {DEQUANTIZE: _dequantize}
