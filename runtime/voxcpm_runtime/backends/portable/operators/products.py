"""Matrix products and convolutions. In plain mode 8- and 4-bit weights may stay compressed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from voxcpm_runtime.backends.portable.graph import CONTRIB, Call, Operator
from voxcpm_runtime.backends.portable.operators.integer_products import quantized_matmul, quantized_taps
from voxcpm_runtime.backends.portable.operators.layout import END

# Larger weights do not fit in a core's cache; reading them dominates a transposed convolution.
_LARGE_WEIGHT = 1 << 20


def _linear(call: Call) -> str:
    """X · weightᵀ + bias, weight (out_features, in_features)."""
    product = quantized_matmul(call, "weight", transposed=True)
    if product is None:
        # The contrib operator multiplies by the stored transpose, without a transposed copy at load on a processor.
        product = call.emit("FusedMatMul", call.tensor("x"), call.tensor("weight"), domain=CONTRIB, transB=1)
    # coremltools adds a zero bias to products without one.
    if not call.has("bias") or (call.is_constant("bias") and not np.any(call.static("bias"))):
        return product
    return call.emit("Add", product, call.tensor("bias"))


def _matmul(call: Call) -> str:
    transpose_x, transpose_y = call.static("transpose_x", False), call.static("transpose_y", False)
    product = None if transpose_x else quantized_matmul(call, "y", transposed=transpose_y)
    if product is not None:
        return product
    x, y = call.tensor("x"), call.tensor("y")
    if not (transpose_x or transpose_y):
        return call.emit("MatMul", x, y)
    return call.emit("FusedMatMul", x, y, domain=CONTRIB, transA=int(transpose_x), transB=int(transpose_y))


def _conv(call: Call) -> str:
    return call.emit("Conv", *_operands(call), **_geometry(call))


def _conv_transpose(call: Call) -> str:
    geometry = _geometry(call)
    if call.has("output_shape"):
        geometry["output_padding"] = _output_padding(call, geometry)
    return _overlap_add(call, geometry) or call.emit("ConvTranspose", *_operands(call), **geometry)


def _operands(call: Call) -> list[str]:
    return [call.tensor(name) for name in ("x", "weight", "bias") if call.has(name)]


def _geometry(call: Call) -> dict[str, Any]:
    """ONNX attributes. MIL lists pads as (before, after) per axis, ONNX all before and then all after."""
    spatial = call.rank("weight") - 2
    pad_type = call.static("pad_type", "valid")
    if pad_type not in {"valid", "custom"}:
        raise call.refuse(f"pad_type {pad_type}")
    pad = call.static("pad", [0] * 2 * spatial) if pad_type == "custom" else [0] * 2 * spatial
    return {
        "group": call.static("groups", 1),
        "strides": call.static("strides", [1] * spatial),
        "dilations": call.static("dilations", [1] * spatial),
        "pads": pad[0::2] + pad[1::2],
    }


def _output_padding(call: Call, geometry: dict[str, Any]) -> list[int]:
    """Trailing elements of the output shape beyond (D − 1)·stride + (kernel − 1)·dilation + 1 − pads."""
    output_sizes = call.static("output_shape")[2:]
    sizes, kernel = call.shape("x")[2:], call.shape("weight")[2:]
    extra = []
    for i, (output_size, size, taps) in enumerate(zip(output_sizes, sizes, kernel, strict=True)):
        if size is None or taps is None:
            raise call.refuse("output_shape with an input of open length")
        span = (size - 1) * geometry["strides"][i] + (taps - 1) * geometry["dilations"][i] + 1
        pads = geometry["pads"][i] + geometry["pads"][i + len(output_sizes)]
        extra.append(output_size - (span - pads))
    return extra


def _overlap_add(call: Call, geometry: dict[str, Any]) -> str | None:
    """A transposed convolution with kernel 2·stride, padding stride and int8 weights, as a product and an overlap-add.

    None for any other, and for small weights, for which moving the halves costs more than it saves.
    """
    sizes = [size or 0 for size in call.shape("weight")]
    outputs, stride = sizes[1], geometry["strides"][0]
    plain = {"output_padding": [0], **geometry} == {
        "group": 1, "strides": [stride], "dilations": [1], "pads": [stride, stride], "output_padding": [0],
    }  # fmt: skip
    if not plain or call.shape("x")[0] != 1 or sizes[2:] != [2 * stride] or math.prod(sizes) < _LARGE_WEIGHT:
        return None
    taps = quantized_taps(call, "weight", call.emit("Transpose", call.tensor("x"), perm=[0, 2, 1]))
    if taps is None:
        return None
    # (1, frames, out · 2 · stride) -> (2, out, frames, stride): the two halves of each frame's contribution
    halves = call.reshape(taps, [-1, outputs, 2, stride])
    halves = call.emit("Transpose", halves, perm=[2, 1, 0, 3])
    halves = call.reshape(halves, [2, outputs, -1])
    # The first halves without the first frame's; the second halves, one frame later, without the last frame's.
    now = call.slice(halves, [0, stride], [1, END], [0, 2])
    later = call.slice(halves, [1, 0], [2, -stride], [0, 2])
    added = call.emit("Add", now, later)
    if not call.has("bias"):
        return added
    return call.emit("Add", added, call.emit("Unsqueeze", call.tensor("bias"), call.integers([1])))


OPERATORS: dict[str, Operator] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "linear": _linear,
    "matmul": _matmul,
}
