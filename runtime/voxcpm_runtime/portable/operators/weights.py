"""Compressed weights: int8 with a scale a channel, from `linear_quantize_weights(mode="linear_symmetric")`.

All the arithmetic here has constant inputs, so ONNX Runtime does it once, when it loads the graph, straight from
the memory-mapped file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from voxcpm_runtime.portable.graph import CONTRIB, Call, Operator
from voxcpm_runtime.portable.package import Blob, Operation

DEQUANTIZE = "constexpr_affine_dequantize"

# MatMulNBits quantises activations in blocks of the same length: small blocks keep an outlier from coarsening its
# neighbours, large ones are a little faster (TRIALS.md). The first that divides the row length is taken.
BLOCK_SIZES = (32, 16)

# MatMulNBits computes with int8 activations at this level; at lower ones it unpacks to float32 and is far slower.
INT8_ACCURACY_LEVEL = 4

# From so many rows on, one integer product of whole rows takes half the time, and costs 4 dB (TRIALS.md).
WHOLE_ROWS = 4

# Keeps a row of zeros from being divided by zero.
_SMALLEST_PEAK = 1e-30


@dataclass(frozen=True)
class _Quantized:
    """An int8 weight (columns, rows) when `transposed`, else (rows, columns...), with one scale a column."""

    blob: Blob
    transposed: bool
    scales: np.ndarray

    @property
    def columns(self) -> int:
        return len(self.scales)

    @property
    def rows(self) -> int:
        return self.blob.shape[1 if self.transposed else 0]

    def stored(self, call: Call, *, transposed: bool) -> str:
        """The weight as uint8 with zero point 128, in the layout asked for."""
        value = call.graph.weight(self.blob, np.dtype(np.uint8))
        if len(self.blob.shape) > 2:
            value = call.emit("Reshape", value, call.graph.integers([self.rows, self.columns]))
        value = value if self.transposed == transposed else call.emit("Transpose", value, perm=[1, 0])
        # Two's complement int8 with its top bit flipped is the same number as uint8 with zero point 128.
        return call.emit("BitwiseXor", value, call.scalar(0x80, np.uint8))


def quantized_matmul(call: Call, weight: str, transposed: bool) -> str | None:
    """X · W with W kept 8-bit; None when W is not an int8 weight that this can hold.

    `weight` names the input that holds W: (out, in) when `transposed`, else (in, out).
    """
    quantized = _quantized(call, weight, channel_axis=0 if transposed else 1)
    if quantized is None or len(quantized.blob.shape) != 2:
        return None
    if _least_rows(call) >= WHOLE_ROWS:
        return _whole_row_product(call, call.tensor("x"), quantized)
    return _block_product(call, quantized)


def quantized_taps(call: Call, weight: str, x: str) -> str | None:
    """What each frame of x (1, frames, in) adds around it, (1, frames, out · taps), W (in, out, taps) kept 8-bit.

    None when W is not an int8 weight that this can hold.
    """
    quantized = _quantized(call, weight, channel_axis=1)
    return None if quantized is None else _whole_row_product(call, x, quantized)


def _quantized(call: Call, weight: str, channel_axis: int) -> _Quantized | None:
    """The int8 weight behind an input, when it has one scale for each channel of that axis."""
    operation = call.dequantized.get(call.reference(weight) or "")
    if operation is None or call.mode != "plain":
        return None
    data = operation.attributes["quantized_data"]
    if data.type.dtype != "INT8" or not isinstance(data.data, Blob):
        return None
    if _axis(call, operation) != channel_axis or np.any(call.array(operation.attributes["zero_point"])):
        return None
    scale = call.array(operation.attributes["scale"]).astype(np.float32)
    channels, *taps = data.data.shape[channel_axis:] if channel_axis else data.data.shape[:1]
    return _Quantized(
        data.data, channel_axis == 0, np.broadcast_to(scale, (channels,)).repeat(math.prod(taps))
    )


def _least_rows(call: Call) -> int:
    """Rows of X as far as they are known now: an axis of open length counts once."""
    return math.prod(size or 1 for size in call.shape("x")[:-1])


def _block_product(call: Call, weight: _Quantized) -> str | None:
    """One MatMulNBits: best for one row, as in a decode step, where reading the weight is what takes time."""
    block = next((size for size in BLOCK_SIZES if weight.rows % size == 0), None)
    if block is None:
        return None
    blocks = weight.rows // block
    shape = call.graph.integers([weight.columns, blocks, block])
    packed = call.emit("Reshape", weight.stored(call, transposed=True), shape)
    column = call.graph.constant(weight.scales.reshape(-1, 1), np.float32)
    scale = call.emit("Expand", column, call.graph.integers([weight.columns, blocks]))
    return call.emit(
        "MatMulNBits", call.tensor("x"), packed, call.emit("Reshape", scale, call.graph.integers([-1])),
        domain=CONTRIB, K=weight.rows, N=weight.columns, bits=8, block_size=block, accuracy_level=INT8_ACCURACY_LEVEL,
    )  # fmt: skip


def _whole_row_product(call: Call, x: str, weight: _Quantized) -> str:
    """Rows scaled to a peak of 1, one integer product with unsigned factors, rows scaled back.

    The product quantises all rows with one scale; equal peaks make that a scale of each row's own. Unsigned, because
    the signed product saturates on processors without VNNI.
    """
    peak = call.emit("ReduceMax", call.emit("Abs", x), call.graph.integers([-1]), keepdims=1)
    peak = call.emit("Max", peak, call.scalar(_SMALLEST_PEAK))
    product = call.emit(
        "DynamicQuantizeMatMul", call.emit("Div", x, peak), weight.stored(call, transposed=False),
        call.graph.constant(weight.scales, np.float32),
        call.graph.constant(np.full(weight.columns, 0x80), np.uint8),
        domain=CONTRIB,
    )  # fmt: skip
    return call.emit("Mul", product, peak)


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
