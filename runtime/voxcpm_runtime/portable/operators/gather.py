"""Reading and writing at computed positions. Scatters replace ("update"); other modes are refused."""

from __future__ import annotations

import numpy as np

from voxcpm_runtime.portable.graph import Call, Operator


def _gather(call: Call) -> str:
    if call.static("batch_dims", 0):
        raise call.refuse("batch_dims other than 0")
    return call.emit("Gather", call.tensor("x"), call.tensor("indices"), axis=call.static("axis", 0))


def _gather_along_axis(call: Call) -> str:
    return call.emit("GatherElements", call.tensor("x"), call.tensor("indices"), axis=call.static("axis", 0))


def _scatter(call: Call) -> str:
    """Slices of `updates` replace slices of `data` at 1-D `indices` along an axis."""
    _require_update(call)
    rank = call.rank("data")
    axis = call.static("axis", 0) % rank
    data, indices, updates = call.tensor("data"), call.indices("indices"), call.tensor("updates")
    if axis == 0:
        rows = call.emit("Unsqueeze", indices, call.graph.integers([-1]))
        return call.emit("ScatterND", data, rows, updates)
    column = np.ones(rank, np.int64)
    column[axis] = -1
    column_name = call.emit("Reshape", indices, call.graph.integers(column))
    everywhere = call.emit("Expand", column_name, call.emit("Shape", updates))
    return call.emit("ScatterElements", data, everywhere, updates, axis=axis)


def _scatter_along_axis(call: Call) -> str:
    _require_update(call)
    axis = call.static("axis", 0)
    return call.emit("ScatterElements", *_scatter_operands(call, call.tensor("indices")), axis=axis)


def _scatter_nd(call: Call) -> str:
    _require_update(call)
    return call.emit("ScatterND", *_scatter_operands(call, call.indices("indices")))


def _scatter_operands(call: Call, indices: str) -> tuple[str, str, str]:
    return call.tensor("data"), indices, call.tensor("updates")


def _require_update(call: Call) -> None:
    mode = call.static("mode", "add")
    if mode != "update":
        raise call.refuse(f"mode {mode}")


OPERATORS: dict[str, Operator] = {
    "gather": _gather,
    "gather_along_axis": _gather_along_axis,
    "scatter": _scatter,
    "scatter_along_axis": _scatter_along_axis,
    "scatter_nd": _scatter_nd,
}
