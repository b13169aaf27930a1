"""Compressed weights: 8- or 4-bit integers, with a scale and optionally an offset per channel or block.

All arithmetic here has constant inputs, so ONNX Runtime folds it when it loads the graph, directly from the
memory-mapped file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from voxcpm_runtime.backends.portable.graph import Call, Operator
from voxcpm_runtime.backends.portable.package import HALF_BYTES, Blob, Constant, Operation, TensorType

_AFFINE = "constexpr_affine_dequantize"
DEQUANTIZERS = frozenset({_AFFINE, "constexpr_blockwise_shift_scale"})


class Compressed(NamedTuple):
    """W = (data − offset) · scale, of `shape`; offset is None if it is zero everywhere.

    scale and offset have the rank of data; along an axis of n elements with m `scales`, each is for a block of n / m.
    """

    data: Constant
    scale: Constant
    offset: Constant | None
    shape: tuple[int, ...]
    scales: tuple[int, ...]


def compressed(call: Call, operation: Operation) -> Compressed:
    """The weight of a dequantising operation. `call` may be a later operation that uses it."""
    offset: Constant | None
    if operation.kind == _AFFINE:
        # iOS 16: scale and zero_point are scalars, or vectors along one axis.
        data, scale, zero_point = (operation.attributes[n] for n in ("quantized_data", "scale", "zero_point"))
        rank = len(data.type.shape)
        along = [1] * rank
        along[int(call.array(operation.attributes["axis"])) % rank] = -1

        def aligned(constant: Constant) -> Constant:
            array = call.array(constant).reshape(along)
            return Constant(TensorType(constant.type.dtype, array.shape), array)

        scale, offset = aligned(scale), aligned(zero_point)
    else:
        # iOS 18: scale and offset have the rank of data.
        constants = {name: call.require_constant(argument) for name, (argument,) in operation.inputs.items()}
        data, scale, offset = constants["data"], constants["scale"], constants.get("offset")
    if offset is not None and not np.any(call.array(offset)):
        offset = None
    shape, scales = (tuple(size or 0 for size in c.type.shape) for c in (data, scale))
    return Compressed(data, scale, offset, shape, scales)


def _dequantize(call: Call) -> str:
    """The weight in float32."""
    weight = compressed(call, call.operation)
    for constant in (weight.data, weight.offset):
        if constant is not None and constant.type.dtype not in ("INT8", HALF_BYTES):
            raise call.refuse(f"a weight of type {constant.type.dtype}")
    # A blockwise axis becomes two: (block, element).
    axes = list(zip(weight.shape, weight.scales, strict=True))
    cut = [(count, size // count) if 1 < count < size else (size,) for size, count in axes]
    spread = [(count, 1) if 1 < count < size else (count,) for size, count in axes]
    in_blocks = any(len(axis) == 2 for axis in cut)

    def reshaped(value: str, shape: Sequence[tuple[int, ...]]) -> str:
        if not in_blocks:
            return value
        return call.reshape(value, [n for axis in shape for n in axis])

    value, scale = _as_float32(call, weight.data), call.materialised(weight.scale)
    value, scale = reshaped(value, cut), reshaped(scale, spread)
    if weight.offset is not None:
        value = call.emit("Sub", value, reshaped(_as_float32(call, weight.offset), spread))
    value = call.emit("Mul", value, scale)
    return call.reshape(value, weight.shape) if in_blocks else value


def _as_float32(call: Call, constant: Constant) -> str:
    """Stored integers in float32."""
    if not isinstance(constant.data, Blob):
        return call.constant(call.array(constant), np.float32)
    if constant.type.dtype == HALF_BYTES:
        return _unpack_int4(call, constant.data)
    stored = call.graph.weight(constant.data, np.dtype(np.int8))
    return call.emit("Cast", stored, to=TensorProto.FLOAT)


def _unpack_int4(call: Call, blob: Blob) -> str:
    """Half bytes in float32, the low half of each byte first."""
    packed = call.graph.weight(blob, np.dtype(np.uint8))
    low = call.emit("BitwiseAnd", packed, call.constant(0x0F, np.uint8))
    high = call.emit("BitShift", packed, call.constant(4, np.uint8), direction="RIGHT")
    columns = [call.emit("Unsqueeze", half, call.integers([1])) for half in (low, high)]
    pairs = call.emit("Concat", *columns, axis=1)
    value, count = call.reshape(pairs, [-1]), math.prod(blob.shape)
    if count % 2:
        value = call.emit("Slice", value, call.integers([0]), call.integers([count]))
    value = call.reshape(value, blob.shape)
    # Two's complement with the top bit flipped is the number plus eight.
    flipped = call.emit("BitwiseXor", value, call.constant(8, np.uint8))
    value = call.emit("Cast", flipped, to=TensorProto.FLOAT)
    return call.emit("Sub", value, call.constant(8))


OPERATORS: dict[str, Operator] = dict.fromkeys(DEQUANTIZERS, _dequantize)
