"""Operations that only move values: reshaping, joining, slicing, gathering and scattering."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxcpm_runtime.backends.portable.graph import Call, Operator

# The end of an axis of any size: ONNX clamps bounds to the tensor.
END = np.iinfo(np.int64).max


def _concat(call: Call) -> str:
    """Tensors concatenated along an axis, or scalars stacked to a vector."""
    if call.static("interleave", False):
        raise call.refuse("interleave")
    names, ranks = call.tensors("values")
    return _stack(call, axis=0) if 0 in ranks else call.emit("Concat", *names, axis=call.static("axis"))


def _stack(call: Call, axis: int) -> str:
    axes = call.integers([axis])
    names, _ = call.tensors("values")
    return call.emit("Concat", *(call.emit("Unsqueeze", name, axes) for name in names), axis=axis)


def _split(call: Call) -> list[str]:
    sizes, count = call.indices("split_sizes"), len(call.operation.outputs)
    return call.graph.emit_many("Split", call.tensor("x"), sizes, outputs=count, axis=call.static("axis"))


def _squeeze(call: Call) -> str:
    axes = [call.indices("axes")] if call.has("axes") else []
    return call.emit("Squeeze", call.tensor("x"), *axes)


def _transpose(call: Call) -> str:
    rank = call.rank("x")
    return call.emit("Transpose", call.tensor("x"), perm=[axis % rank for axis in call.static("perm")])


def _slice_by_index(call: Call) -> str:
    """A slice, unbounded on masked axes; a squeezed axis is indexed by `begin`."""
    rank = call.rank("x")
    if set(call.static("stride", [1])) != {1}:
        raise call.refuse("strides")
    flags = [call.static(name, [False] * rank) for name in ("begin_mask", "end_mask", "squeeze_mask")]
    begins, ends = call.static("begin"), call.static("end")
    for axis, (from_start, to_end, squeezed) in enumerate(zip(*flags, strict=True)):
        if squeezed:
            ends[axis] = begins[axis] + 1 or END  # the element −1 ends at END, not at 0
        else:
            begins[axis] = 0 if from_start else begins[axis]
            ends[axis] = END if to_end else ends[axis]
    result = call.slice(call.tensor("x"), begins, ends, range(rank))
    squeezed_axes = [axis for axis, flag in enumerate(flags[2]) if flag]
    return call.emit("Squeeze", result, call.integers(squeezed_axes)) if squeezed_axes else result


def _slice_by_size(call: Call) -> str:
    """`size` elements of each axis from `begin` on; -1 means all remaining ones."""
    begins, sizes = call.static("begin"), call.static("size")
    ends = [END if size == -1 else begin + size for begin, size in zip(begins, sizes, strict=True)]
    return call.slice(call.tensor("x"), begins, ends, range(len(begins)))


def _gather(call: Call) -> str:
    if call.static("batch_dims", 0):
        raise call.refuse("batch_dims other than 0")
    return call.emit("Gather", call.tensor("x"), call.tensor("indices"), axis=call.static("axis", 0))


def _scatter(call: Call) -> str:
    """Slices of `updates` replace slices of `data` at 1-D `indices` along an axis."""
    mode = call.static("mode", "add")
    if mode != "update":
        raise call.refuse(f"mode {mode}")
    axis = call.static("axis", 0) % call.rank("data")
    return _scatter_rows(call, "data", axis, call.indices("indices"), "updates")


def _scatter_along_axis(call: Call) -> str:
    """Each element of `updates` replaces the one of `data` whose index along the axis `indices` gives."""
    return _scatter_elements(call, "ScatterElements", axis=call.static("axis", 0))


def _scatter_nd(call: Call) -> str:
    """Slices of `updates` replace those of `data` at the `indices` (..., axes) on its first axes."""
    return _scatter_elements(call, "ScatterND")


def _scatter_elements(call: Call, operator: str, **attributes: Any) -> str:
    mode = call.static("mode", "add")
    if mode != "update":
        raise call.refuse(f"mode {mode}")
    operands = call.tensor("data"), call.indices("indices"), call.tensor("updates")
    return call.emit(operator, *operands, **attributes)


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}


def _pad(call: Call) -> str:
    """Pads the last axes. MIL lists (before, after) per axis, ONNX all before and then all after."""
    mode = call.static("mode", "constant")
    if mode not in _PAD_MODES:
        raise call.refuse(f"mode {mode}")
    pads = call.static("pad")
    axes = range(call.rank("x") - len(pads) // 2, call.rank("x"))
    value = call.constant(call.static("constant_val", 0), call.dtype("x")) if mode == "constant" else ""
    sizes = call.integers(pads[0::2] + pads[1::2])
    return call.emit("Pad", call.tensor("x"), sizes, value, call.integers(axes), mode=_PAD_MODES[mode])


def _slice_update(call: Call) -> str:
    """`update` replaces a slice of `x` along one axis, from the index `begin` on."""
    rank = call.rank("x")
    masks = [call.static(name, [False] * rank) for name in ("begin_mask", "end_mask")]
    axes = [axis for axis in range(rank) if not (masks[0][axis] and masks[1][axis])]
    if len(axes) != 1 or masks[0] != masks[1]:
        raise call.refuse("a slice of other than one axis")
    if set(call.static("stride", [1])) != {1} or any(call.static("squeeze_mask", [False])):
        raise call.refuse("strides and squeezed axes")
    (axis,) = axes
    first = call.emit("Gather", call.indices("begin"), call.integers([axis]), axis=0)
    length = call.shape("update")[axis]
    if length is None:
        raise call.refuse("an update of open length")
    indices = first if length == 1 else call.emit("Add", first, call.integers(range(length)))
    return _scatter_rows(call, "x", axis, indices, "update")


def _scatter_rows(call: Call, into: str, axis: int, indices: str, rows: str) -> str:
    outer = tuple(size for size in call.shape(into)[:axis] if size is not None)
    if len(outer) < axis:
        raise call.refuse("an open length before the scattered axis")
    # ScatterElements needs an index per element, and takes several times as long for 64 rows (TRIALS.md).
    return call.emit("ScatterND", call.tensor(into), _nd_indices(call, outer, indices), call.tensor(rows))


def _nd_indices(call: Call, outer: tuple[int, ...], indices: str) -> str:
    """ScatterND's indices (outer..., indices, axes): the coordinates of each index at each place of the outer axes."""
    axes = len(outer)
    column = call.reshape(indices, [*[1] * axes, -1, 1])
    if not axes:
        return column
    places = np.moveaxis(np.indices(outer), 0, -1)[..., None, :]
    count = call.emit("Shape", indices)
    shape = call.emit("Concat", call.integers(outer), count, call.integers([axes]), axis=0)
    everywhere = call.emit("Expand", call.constant(places, np.int64), shape)
    shape = call.emit("Concat", call.integers(outer), count, call.integers([1]), axis=0)
    return call.emit("Concat", everywhere, call.emit("Expand", column, shape), axis=-1)


OPERATORS: dict[str, Operator] = {
    "concat": _concat,
    "expand_dims": lambda call: call.emit("Unsqueeze", call.tensor("x"), call.indices("axes")),
    "gather": _gather,
    "pad": _pad,
    "reshape": lambda call: call.emit("Reshape", call.tensor("x"), call.indices("shape")),
    "scatter": _scatter,
    "scatter_along_axis": _scatter_along_axis,
    "scatter_nd": _scatter_nd,
    "slice_by_index": _slice_by_index,
    "slice_by_size": _slice_by_size,
    "slice_update": _slice_update,
    "split": _split,
    "squeeze": _squeeze,
    "stack": lambda call: _stack(call, call.static("axis")),
    "tile": lambda call: call.emit("Tile", call.tensor("x"), call.indices("reps")),
    "transpose": _transpose,
}
