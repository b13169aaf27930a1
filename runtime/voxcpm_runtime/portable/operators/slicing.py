"""Slices by bounds and strides."""

from __future__ import annotations

import numpy as np

from voxcpm_runtime.portable.graph import Call, Operator

# ONNX clamps bounds to the tensor: these mean the far end of an axis, whatever its size.
END = np.iinfo(np.int64).max
BEFORE_START = np.iinfo(np.int64).min


def _slice_by_index(call: Call) -> str:
    rank = call.rank("x")
    flags = {name: call.static(name, [False] * rank) for name in ("begin_mask", "end_mask", "squeeze_mask")}
    squeezed = [axis for axis, flag in enumerate(flags["squeeze_mask"]) if flag]
    # A squeezed axis takes one element at `begin`, whatever its stride and end.
    strides = [1 if axis in squeezed else s for axis, s in enumerate(call.static("stride", [1] * rank))]
    bounds = _static_bounds if call.is_constant("begin") and call.is_constant("end") else _computed_bounds
    begin, end = bounds(call, flags, strides)
    axes = call.graph.integers(range(rank))
    result = call.emit("Slice", call.tensor("x"), begin, end, axes, call.graph.integers(strides))
    return call.emit("Squeeze", result, call.graph.integers(squeezed)) if squeezed else result


def _static_bounds(call: Call, flags: dict[str, list[bool]], strides: list[int]) -> tuple[str, str]:
    begins, ends = call.static("begin"), call.static("end")
    for axis, stride in enumerate(strides):
        first, last = _whole_axis(stride)
        if flags["squeeze_mask"][axis]:
            ends[axis] = begins[axis] + 1 or END  # after element −1 comes the end, not element 0
        else:
            begins[axis] = first if flags["begin_mask"][axis] else begins[axis]
            ends[axis] = last if flags["end_mask"][axis] else ends[axis]
    return call.graph.integers(begins), call.graph.integers(ends)


def _computed_bounds(call: Call, flags: dict[str, list[bool]], strides: list[int]) -> tuple[str, str]:
    graph = call.graph
    firsts, lasts = zip(*map(_whole_axis, strides), strict=True)
    squeeze = graph.constant(flags["squeeze_mask"], np.bool_)
    masked_begin = np.array(flags["begin_mask"]) & ~np.array(flags["squeeze_mask"])
    begin = graph.emit(
        "Where", graph.constant(masked_begin, np.bool_), graph.integers(firsts), call.indices("begin")
    )
    end = graph.emit(
        "Where", graph.constant(flags["end_mask"], np.bool_), graph.integers(lasts), call.indices("end")
    )
    after = graph.emit("Add", begin, graph.integers(1))
    is_last = graph.emit("Equal", after, graph.integers(0))
    after = graph.emit("Where", is_last, graph.integers(END), after)
    return begin, graph.emit("Where", squeeze, after, end)


def _whole_axis(stride: int) -> tuple[int, int]:
    """Bounds of a slice of the whole axis, in the stride's direction."""
    return (0, END) if stride > 0 else (END, BEFORE_START)


def _slice_by_size(call: Call) -> str:
    """`size` elements from `begin` on; size −1 reaches to the end."""
    graph = call.graph
    begin, size = call.indices("begin"), call.indices("size")
    to_end = graph.emit("Equal", size, graph.integers(-1))
    end = graph.emit("Where", to_end, graph.integers(END), graph.emit("Add", begin, size))
    return graph.emit("Slice", call.tensor("x"), begin, end)


OPERATORS: dict[str, Operator] = {"slice_by_index": _slice_by_index, "slice_by_size": _slice_by_size}
