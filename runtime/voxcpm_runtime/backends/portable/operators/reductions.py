"""Operations along axes: sums, running sums, means, maxima and softmax."""

from __future__ import annotations

from voxcpm_runtime.backends.portable.graph import Call, Operator

REDUCTIONS = {
    "reduce_max": "ReduceMax",
    "reduce_mean": "ReduceMean",
    "reduce_sum": "ReduceSum",
}


def _reduction(kind: str) -> Operator:
    def reduce(call: Call) -> str:
        axes = call.graph.integers(call.static("axes", list(range(call.rank("x")))))
        return call.emit(kind, call.tensor("x"), axes, keepdims=int(call.static("keep_dims", False)))

    return reduce


def _cumsum(call: Call) -> str:
    flags = {name: int(call.static(name, False)) for name in ("exclusive", "reverse")}
    return call.emit("CumSum", call.tensor("x"), call.graph.integers(call.static("axis", 0)), **flags)


def _softmax(call: Call) -> str:
    return call.emit("Softmax", call.tensor("x"), axis=call.static("axis", -1))


OPERATORS: dict[str, Operator] = {
    **{mil: _reduction(kind) for mil, kind in REDUCTIONS.items()},
    "cumsum": _cumsum,
    "softmax": _softmax,
}
