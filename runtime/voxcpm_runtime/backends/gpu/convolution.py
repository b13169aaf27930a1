"""Causal convolutions of a stream as one node for a GPU, with the context that comes before and the one that is left.

A convolution of each channel by itself, with a dilation, is a kernel for every channel in cuDNN.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, helper

from voxcpm_runtime.backends.gpu.view import View, attribute
from voxcpm_runtime.backends.portable.graph import CONTRIB

# Of (utterances, channels, samples).
_SAMPLES_AXIS = 2

# The end of a slice that takes all that there is.
_WHOLE = int(np.iinfo(np.int64).max)


def causal_convolution(view: View, node: NodeProto) -> list[NodeProto] | None:
    """A convolution of each channel after its context, as the node that has both; None for another node."""
    joined = view.producer(node.input[0], "Concat") if node.op_type == "Conv" else None
    if joined is None or len(joined.input) != 2 or attribute(joined, "axis") not in (-1, _SAMPLES_AXIS):
        return None
    context, x = joined.input
    shapes = [_known(view, name) for name in (context, joined.output[0], node.output[0])]
    if not all(shapes):
        return None
    (_, channels, length), (*_, samples), (_, made_channels, made) = shapes
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    (dilation,) = given.get("dilations", [1])
    left = [reader for reader in view.readers[joined.output[0]] if reader is not node]
    if (
        len(left) > 1
        or not channels == made_channels == given.get("group")
        or made != samples - length
        or any(given.get("pads", []))
        or any(stride != 1 for stride in given.get("strides", []))
        or length % dilation
        or not all(_is_end(view, reader, made) for reader in left)
    ):
        return None
    start, graph = len(view.graph.nodes), view.graph
    bias = node.input[2] if len(node.input) > 2 else ""
    graph.emit_many(
        "CausalConvWithState", x, node.input[1], bias, context, outputs=2, domain=CONTRIB, ndim=1, dilation=dilation,
        activation="none",
    )  # fmt: skip
    new = view.taken(start)
    new[-1].output[0] = node.output[0]
    for reader in left:
        new[-1].output[1] = reader.output[0]
        reader.output[0] = graph.name("unread")
    return new


def _known(view: View, name: str) -> tuple[int, ...]:
    """A shape of three axes, all known; empty for another one."""
    shape = view.shapes.get(name) or ()
    known = tuple(size for size in shape if size is not None)
    return known if len(known) == len(shape) == _SAMPLES_AXIS + 1 else ()


def _is_end(view: View, reader: NodeProto, first: int) -> bool:
    """Whether a node takes all samples from one on, of all channels."""
    if reader.op_type != "Slice":
        return False
    bounds = [view.constant(name) for name in reader.input[1:]]
    known = [bound.tolist() for bound in bounds if bound is not None]
    if len(known) != len(bounds) or len(known) < len(("starts", "ends", "axes")):
        return False
    starts, ends, axes, *steps = known
    taken = {axis: start for axis, start in zip(axes, starts, strict=True) if start}
    return taken == {_SAMPLES_AXIS: first} and {*ends} == {_WHOLE} and all({*step} == {1} for step in steps)
