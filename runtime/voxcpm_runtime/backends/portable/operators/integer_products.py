"""Plain-mode matrix products with 8- and 4-bit weights."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from voxcpm_runtime.backends.portable.graph import CONTRIB, KERNELS, Call
from voxcpm_runtime.backends.portable.kernels import ROW_PRODUCT
from voxcpm_runtime.backends.portable.operators.weights import Compressed, compressed
from voxcpm_runtime.backends.portable.package import HALF_BYTES, Blob

# MatMulNBits quantises activations in blocks of the same length: in small blocks an outlier affects fewer neighbours,
# large ones are slightly faster (TRIALS.md). The first one that divides the row length is used.
_BLOCK_SIZES = (32, 16)
# The block lengths that MatMulNBits supports.
_VALID_BLOCK_SIZES = (16, 32, 64, 128, 256)
# At this level MatMulNBits computes with int8 activations; at lower ones it unpacks to float32, which is far slower.
_INT8_ACCURACY_LEVEL = 4
# From this many rows on, one integer product of whole rows takes half the time, and costs 4 dB (TRIALS.md).
_MIN_WHOLE_ROWS = 4
# RowProduct's unit of rows and columns of a weight.
_PANEL = 64

# Avoids a division by zero for a row of zeros.
_MIN_PEAK = 1e-30
# Quantisation steps from zero to a row's peak, symmetric around the zero point.
_PEAK_STEPS = 0x7F
_ZERO_POINT = 0x80
# Steps of the second plane per step of the first, whose rounding error is at most half a step.
_FINE_STEPS = 2 * _PEAK_STEPS
# Flips the top bits of one or two numbers in a byte: two's complement becomes unsigned around 128, or 8.
_TOP_BIT, _TOP_BITS = 0x80, 0x88


class _Channelwise(NamedTuple):
    """An int8 weight (columns, rows) when `transposed`, else (rows, columns...), with one scale per column."""

    blob: Blob
    transposed: bool
    scales: np.ndarray
    rows: int

    def stored(self, call: Call, *, transposed: bool, signed: bool = False) -> str:
        """The weight, transposed or not, as uint8 with zero point 128, or as int8 if `signed`."""
        value = call.graph.weight(self.blob, np.dtype(np.int8 if signed else np.uint8))
        if len(self.blob.shape) > 2:
            value = call.reshape(value, [self.rows, len(self.scales)])
        value = value if self.transposed == transposed else call.emit("Transpose", value, perm=[1, 0])
        return value if signed else call.emit("BitwiseXor", value, call.constant(_TOP_BIT, np.uint8))


def quantized_matmul(call: Call, weight: str, transposed: bool) -> str | None:
    """X · W with 8- or 4-bit W; None if W is in another form. weight: W's input, (out, in) if `transposed`."""
    stored = _compressed_weight(call, weight)
    if stored is None or len(stored.shape) != 2:
        return None
    channelwise = _channelwise(call, stored, channel_axis=0 if transposed else 1)
    if channelwise is None:
        return _packed_product(call, stored) if transposed else None
    # A dynamic axis counts as one row. Several utterances are multiplied as each alone, so that they sound the same.
    x, utterances = call.tensor("x"), call.graph.utterances
    many = math.prod(size or 1 for size in call.shape("x")[:-1]) // utterances >= _MIN_WHOLE_ROWS
    if not call.graph.signed_products:
        return _whole_row_product(call, x, channelwise) if many else _channelwise_product(call, channelwise)
    # The input of a gated MLP's last product has outliers. That product narrows, and nothing else reads its input. Keys
    # and values narrow, too, but their input is normalised, and also read for the queries.
    narrows = len(channelwise.scales) < channelwise.rows
    outliers = narrows and call.program.readers[call.reference("x") or ""] == 1
    if many and not outliers:
        return _whole_row_product(call, x, channelwise)
    return _two_plane_product(call, x, channelwise, always=outliers or utterances > 1)


def quantized_taps(call: Call, weight: str, x: str) -> str | None:
    """Contributions (1, frames, out · taps) of each frame of x (1, frames, in), for int8 W (in, out, taps), or None."""
    stored = _compressed_weight(call, weight)
    channelwise = None if stored is None else _channelwise(call, stored, channel_axis=1)
    return None if channelwise is None else _whole_row_product(call, x, channelwise)


def _compressed_weight(call: Call, weight: str) -> Compressed | None:
    """The compressed weight of an input; None without one, or in another mode than plain."""
    operation = call.dequantized.get(call.reference(weight) or "")
    return None if operation is None or call.mode != "plain" else compressed(call, operation)


def _channelwise(call: Call, weight: Compressed, channel_axis: int) -> _Channelwise | None:
    """The weight, if it is int8 with one scale for each channel of that axis or one for all; otherwise None."""
    blob = weight.data.data
    if weight.data.type.dtype != "INT8" or not isinstance(blob, Blob) or weight.offset is not None:
        return None
    scale = call.array(weight.scale).astype(np.float32).reshape(-1)
    channels, *taps = weight.shape[channel_axis:] if channel_axis else weight.shape[:1]
    if len(scale) != weight.scales[channel_axis] or len(scale) not in (1, channels):
        return None
    scales = np.broadcast_to(scale, (channels,)).repeat(math.prod(taps))
    return _Channelwise(blob, channel_axis == 0, scales, weight.shape[1 - channel_axis])


def _channelwise_product(call: Call, weight: _Channelwise) -> str | None:
    """One MatMulNBits: best for a single row, as in a decode step, where reading the weight dominates."""
    block = _dividing_block(weight.rows)
    if block is None:
        return None
    scales = call.constant(weight.scales.reshape(-1, 1), np.float32)
    data = weight.stored(call, transposed=True)
    return _block_product(call, data, scales, (len(weight.scales), weight.rows), bits=8, block=block)


def _packed_product(call: Call, weight: Compressed) -> str | None:
    """One MatMulNBits with a 4-bit weight (out, in) whose rows have scales, and perhaps offsets, in blocks."""
    (columns, rows), groups = weight.shape, weight.scales[1]
    block = _dividing_block(rows) if groups == 1 else rows // groups
    if weight.data.type.dtype != HALF_BYTES or weight.scales[0] != columns or block not in _VALID_BLOCK_SIZES:
        return None
    # One offset per block, in whole bytes per row.
    if weight.offset is not None and (groups != rows // block or groups % 2):
        return None
    given = [constant.data for constant in (weight.data, weight.offset) if constant is not None]
    blobs = [data for data in given if isinstance(data, Blob)]
    if len(blobs) != len(given):
        return None
    top_bits = call.constant(_TOP_BITS, np.uint8)
    stored = [call.graph.weight(blob, np.dtype(np.uint8)) for blob in blobs]
    data, *zeros = [call.emit("BitwiseXor", name, top_bits) for name in stored]
    scales = call.materialised(weight.scale)
    return _block_product(call, data, scales, (columns, rows), *zeros, bits=4, block=block)


def _dividing_block(rows: int) -> int | None:
    return next((size for size in _BLOCK_SIZES if rows % size == 0), None)


def _block_product(
    call: Call, data: str, scales: str, shape: tuple[int, int], *zeros: str, bits: int, block: int
) -> str:
    """One MatMulNBits over blocks.

    data: unsigned, (columns, rows) in any shape. scales: (columns, 1) or (columns, blocks). zeros: (columns, bytes).
    """
    columns, rows = shape
    blocks = rows // block
    packed = call.reshape(data, [columns, blocks, block * bits // 8])
    scale = call.reshape(call.emit("Expand", scales, call.integers([columns, blocks])), [-1])
    points = [call.reshape(zero, [-1]) for zero in zeros]
    return call.emit(
        "MatMulNBits", call.tensor("x"), packed, scale, *points,
        domain=CONTRIB, K=rows, N=columns, bits=bits, block_size=block, accuracy_level=_INT8_ACCURACY_LEVEL,
    )  # fmt: skip


def _whole_row_product(call: Call, x: str, weight: _Channelwise) -> str:
    """Rows scaled to a peak of 1, one integer product, rows scaled back.

    The product has one scale for all rows; since their peaks are equal, each row effectively has its own. The scale is
    fixed, unlike DynamicQuantizeMatMul's, so that no row depends on another.
    """
    if product := _row_product(call, x, weight, planes=1):
        return product
    peak, step = _peak(call, x), 1 / _PEAK_STEPS
    rows = call.emit("QuantizeLinear", call.emit("Div", x, peak), *_grid(call, step))
    return call.emit("Mul", _byte_product(call, rows, step, weight), peak)


def _two_plane_product(call: Call, x: str, weight: _Channelwise, *, always: bool) -> str:
    """Rows as two planes of bytes in one integer product; the second holds the first one's rounding errors: 15 bits.

    With few rows, reading the weight dominates, so the second plane costs nothing. From _MIN_WHOLE_ROWS rows on it
    does, and is left out unless `always` (TRIALS.md).
    """
    if product := _row_product(call, x, weight, planes=2 if always else 0):
        return product
    # (…, rows, planes, in), and units (…, rows, 1, planes)
    x = call.emit("Unsqueeze", x, call.integers([-2]))
    units = call.emit("Mul", _peak(call, x), call.constant(1 / _PEAK_STEPS))
    fine_units = call.emit("Mul", units, call.constant(1 / _FINE_STEPS))
    steps = call.emit("Div", x, units)
    whole = call.emit("QuantizeLinear", steps, *_grid(call, 1.0))
    parts = [steps, whole]
    if None in call.shape("x")[:-1] and not always:
        rows = call.emit("ReduceProd", call.emit("Shape", x, end=-2), keepdims=1)
        few = call.emit("Less", rows, call.integers([_MIN_WHOLE_ROWS]))
        second = call.emit("Cast", few, to=TensorProto.INT64)
        # Sliced first, so that nothing is computed for a plane that is left out.
        parts = [call.emit("Slice", part, call.integers([0]), second, call.integers([-2])) for part in parts]
        fine_units = call.emit("Slice", fine_units, call.integers([0]), second, call.integers([-1]))
    rest = call.emit("Sub", parts[0], call.emit("DequantizeLinear", parts[1], *_grid(call, 1.0)))
    fine = call.emit("QuantizeLinear", rest, *_grid(call, 1 / _FINE_STEPS))
    product = _byte_product(call, call.emit("Concat", whole, fine, axis=-2), 1.0, weight)
    units = call.emit("Concat", units, fine_units, axis=-1)
    return call.emit("Squeeze", call.emit("MatMul", units, product), call.integers([-2]))


def _row_product(call: Call, x: str, weight: _Channelwise, planes: int) -> str | None:
    """The product as one custom operator, with the same results; None if that is not possible.

    planes: of bytes per row; 0 for two planes below _MIN_WHOLE_ROWS rows, otherwise one.
    """
    columns, rows = len(weight.scales), weight.rows
    fits = ROW_PRODUCT in call.graph.kernels and call.graph.signed_products
    if not fits or columns % _PANEL or rows % _PANEL:
        return None
    data = weight.stored(call, transposed=True, signed=True)
    panels = call.reshape(data, [columns // _PANEL, _PANEL, rows // 4, 4])
    # What the rows' zero point adds to each column. Casts and a sum would take twenty times as long to fold.
    zero_points = call.constant(np.full((rows, 1), _ZERO_POINT), np.uint8)
    return call.emit(
        ROW_PRODUCT,
        x,
        call.emit("Transpose", panels, perm=[0, 2, 1, 3]),
        call.constant(weight.scales, np.float32),
        call.emit("MatMulInteger", data, zero_points),
        domain=KERNELS,
        planes=planes,
    )


def _peak(call: Call, x: str) -> str:
    """The largest magnitude of each row, (…, rows, 1)."""
    peak = call.emit("ReduceMax", call.emit("Abs", x), call.integers([-1]), keepdims=1)
    return call.emit("Max", peak, call.constant(_MIN_PEAK))


def _grid(call: Call, step: float) -> tuple[str, str]:
    """Scale and zero point of uint8 quantisation."""
    return call.constant(step), call.constant(_ZERO_POINT, np.uint8)


def _byte_product(call: Call, rows: str, step: float, weight: _Channelwise) -> str:
    """The integer product of the weight and rows of bytes with this step.

    Weights are signed if that is exact, as it is faster, otherwise unsigned, with the same results.
    """
    signed = call.graph.signed_products
    kind, center = (np.int8, 0) if signed else (np.uint8, _ZERO_POINT)
    scale, zero = _grid(call, step)
    return call.emit(
        "MatMulIntegerToFloat",
        rows,
        weight.stored(call, transposed=False, signed=signed),
        scale, call.constant(weight.scales, np.float32),
        zero, call.constant(np.full(len(weight.scales), center), kind),
        domain=CONTRIB,
    )  # fmt: skip
