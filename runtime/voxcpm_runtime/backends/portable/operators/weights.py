"""Compressed weights: integers of 8 or 4 bits, with a scale and perhaps an offset for each channel or block.

All the arithmetic here has constant inputs, so ONNX Runtime does it once, when it loads the graph, straight from
the memory-mapped file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from voxcpm_runtime.backends.portable.graph import Call, Operator
from voxcpm_runtime.backends.portable.lowered import graph_dtype
from voxcpm_runtime.backends.portable.package import HALF_BYTES, Blob, Constant, Operation, TensorType

# MIL element types of stored integers → bits, and whether they are two's complement.
INTEGERS = {
    "INT8": (8, True),
    "UINT8": (8, False),
    **{name: (4, signed) for name, signed in HALF_BYTES.items()},
}


@dataclass(frozen=True)
class Compressed:
    """W = (data − offset) · scale.

    scale and offset have the rank of data; along an axis of n elements and m scales, each scale is for n / m
    neighbouring elements. offset is None if it is zero everywhere.
    """

    data: Constant
    scale: Constant
    offset: Constant | None

    @property
    def bits(self) -> int:
        """Bits of one stored element: 8 or 4."""
        return INTEGERS[self.data.type.dtype][0]

    @property
    def signed(self) -> bool:
        """Whether stored elements are in two's complement."""
        return INTEGERS[self.data.type.dtype][1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        return tuple(size or 0 for size in self.data.type.shape)

    @property
    def scales(self) -> tuple[int, ...]:
        """Number of scales along each axis."""
        return tuple(size or 0 for size in self.scale.type.shape)


def compressed(call: Call, operation: Operation) -> Compressed:
    """The weight that a dequantising operation makes. `call` may be a later operation that uses the weight."""
    return _READERS[operation.kind](call, operation)


def _affine(call: Call, operation: Operation) -> Compressed:
    """iOS 16: scale and zero_point are scalars, or vectors along one axis."""
    data, scale, offset = (operation.attributes[n] for n in ("quantized_data", "scale", "zero_point"))
    rank = len(data.type.shape)
    along = [1] * rank
    along[int(call.array(operation.attributes["axis"])) % rank] = -1

    def aligned(constant: Constant) -> Constant:
        array = call.array(constant).reshape(along)
        return Constant(TensorType(constant.type.dtype, array.shape), array)

    return Compressed(data, aligned(scale), aligned(offset) if np.any(call.array(offset)) else None)


def _blockwise(call: Call, operation: Operation) -> Compressed:
    """iOS 18: scale and offset have the rank of data."""
    given = {name: call.given(argument) for name, (argument,) in operation.inputs.items()}
    offset = given.get("offset")
    if offset is not None and not np.any(call.array(offset)):
        offset = None
    return Compressed(given["data"], given["scale"], offset)


_READERS: dict[str, Callable[[Call, Operation], Compressed]] = {
    "constexpr_affine_dequantize": _affine,
    "constexpr_blockwise_shift_scale": _blockwise,
}
DEQUANTIZERS = frozenset(_READERS)


def _dequantize(call: Call) -> str:
    """The weight in the graph's dtype, computed in float32."""
    weight = compressed(call, call.operation)
    for constant in (weight.data, *([weight.offset] if weight.offset else [])):
        if constant.type.dtype not in INTEGERS:
            raise call.refuse(f"a weight of type {constant.type.dtype}")
    # An axis in blocks becomes two: which block, and where in it.
    cut = [(count, size // count) if 1 < count < size else (size,) for size, count in _axes(weight)]
    spread = [(count, 1) if 1 < count < size else (count,) for size, count in _axes(weight)]
    integers = call.graph.integers

    def reshaped(value: str, shape: Sequence[tuple[int, ...]]) -> str:
        return call.emit("Reshape", value, integers([n for axis in shape for n in axis]))

    in_blocks = any(len(axis) == 2 for axis in cut)
    value, scale = _floats(call, weight.data), _scale(call, weight)
    value, scale = (reshaped(value, cut), reshaped(scale, spread)) if in_blocks else (value, scale)
    if weight.offset is not None:
        offset = _floats(call, weight.offset)
        value = call.emit("Sub", value, reshaped(offset, spread) if in_blocks else offset)
    value = call.emit("Mul", value, scale)
    if graph_dtype(weight.scale.type.dtype, call.mode) == np.float16:
        value = call.emit("Cast", value, to=TensorProto.FLOAT16)
    return call.emit("Reshape", value, integers(weight.shape)) if in_blocks else value


def _scale(call: Call, weight: Compressed) -> str:
    scale = call.materialised(weight.scale)
    if graph_dtype(weight.scale.type.dtype, call.mode) == np.float16:
        # ONNX Runtime multiplies fp16 numbers on a GPU only; this is computed on the CPU, when it loads the graph.
        return call.emit("Cast", scale, to=TensorProto.FLOAT)
    return scale


def _axes(weight: Compressed) -> list[tuple[int, int]]:
    """(elements, scales) of each axis."""
    return list(zip(weight.shape, weight.scales, strict=True))


def _floats(call: Call, constant: Constant) -> str:
    """Stored integers in float32."""
    if not isinstance(constant.data, Blob):
        return call.graph.constant(call.array(constant), np.float32)
    if constant.type.dtype in HALF_BYTES:
        return _unpacked(call, constant.data)
    stored = call.graph.weight(constant.data, np.dtype(constant.type.dtype.lower()))
    return call.emit("Cast", stored, to=TensorProto.FLOAT)


def _unpacked(call: Call, blob: Blob) -> str:
    """Half bytes in float32, the low half of each byte first."""
    integers, eight = call.graph.integers, call.scalar(8, np.uint8)
    packed = call.graph.weight(blob, np.dtype(np.uint8))
    halves = (
        call.emit("BitwiseAnd", packed, call.scalar(0x0F, np.uint8)),
        call.emit("BitShift", packed, call.scalar(4, np.uint8), direction="RIGHT"),
    )
    pairs = call.emit("Concat", *(call.emit("Unsqueeze", half, integers([1])) for half in halves), axis=1)
    value, count = call.emit("Reshape", pairs, integers([-1])), math.prod(blob.shape)
    if count % 2:
        value = call.emit("Slice", value, integers([0]), integers([count]))
    value = call.emit("Reshape", value, integers(blob.shape))
    if not HALF_BYTES[blob.dtype]:
        return call.emit("Cast", value, to=TensorProto.FLOAT)
    # Two's complement with its top bit flipped is the same number plus eight.
    value = call.emit("Cast", call.emit("BitwiseXor", value, eight), to=TensorProto.FLOAT)
    return call.emit("Sub", value, call.scalar(8))


OPERATORS: dict[str, Operator] = dict.fromkeys(DEQUANTIZERS, _dequantize)
