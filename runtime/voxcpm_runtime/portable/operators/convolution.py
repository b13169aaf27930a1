"""Convolution and transposed convolution over (batch, channels, frames)."""

from __future__ import annotations

from typing import Any

from voxcpm_runtime.portable.graph import Call, Operator

PAD_TYPES = {"valid", "custom"}


def _conv(call: Call) -> str:
    return call.emit("Conv", *_operands(call), **_geometry(call))


def _conv_transpose(call: Call) -> str:
    geometry = _geometry(call)
    if call.has("output_shape"):
        geometry["output_padding"] = _output_padding(call, geometry)
    return call.emit("ConvTranspose", *_operands(call), **geometry)


def _operands(call: Call) -> list[str]:
    return [call.tensor(name) for name in ("x", "weight", "bias") if call.has(name)]


def _geometry(call: Call) -> dict[str, Any]:
    """ONNX attributes. MIL lists pads as (before, after) per axis, ONNX all the befores and then all the afters."""
    spatial = call.rank("weight") - 2
    pad_type = call.static("pad_type", "valid")
    if pad_type not in PAD_TYPES:
        raise call.refuse(f"pad_type {pad_type}")
    pad = call.static("pad", [0] * 2 * spatial) if pad_type == "custom" else [0] * 2 * spatial
    return {
        "group": call.static("groups", 1),
        "strides": call.static("strides", [1] * spatial),
        "dilations": call.static("dilations", [1] * spatial),
        "pads": pad[0::2] + pad[1::2],
    }


def _output_padding(call: Call, geometry: dict[str, Any]) -> list[int]:
    """What the wanted output shape adds at the end, beyond (D − 1)·stride + (kernel − 1)·dilation + 1 − pads."""
    wanted = call.static("output_shape")[2:]
    sizes, kernel = call.shape("x")[2:], call.shape("weight")[2:]
    extra = []
    for i, (want, size, taps) in enumerate(zip(wanted, sizes, kernel, strict=True)):
        if size is None or taps is None:
            raise call.refuse("output_shape with an input of open length")
        span = (size - 1) * geometry["strides"][i] + (taps - 1) * geometry["dilations"][i] + 1
        pads = geometry["pads"][i] + geometry["pads"][i + len(wanted)]
        extra.append(want - (span - pads))
    if min(extra) < 0:
        raise call.refuse(f"output_shape {wanted} is smaller than the convolution's")
    return extra


OPERATORS: dict[str, Operator] = {"conv": _conv, "conv_transpose": _conv_transpose}
