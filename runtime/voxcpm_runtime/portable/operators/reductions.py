"""Operations along axes: sums, means, extremes, norms, softmax and running sums."""

from __future__ import annotations

from onnx import TensorProto

from voxcpm_runtime.portable.graph import Call, Operator

REDUCTIONS = {
    "reduce_l2_norm": "ReduceL2",
    "reduce_max": "ReduceMax",
    "reduce_mean": "ReduceMean",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
    "reduce_sum": "ReduceSum",
    "reduce_sum_square": "ReduceSumSquare",
}


def _reduction(kind: str) -> Operator:
    def reduce(call: Call) -> str:
        axes = call.graph.integers(call.static("axes", list(range(call.rank("x")))))
        return call.emit(kind, call.tensor("x"), axes, keepdims=int(call.static("keep_dims", False)))

    return reduce


def _argmax(call: Call) -> str:
    axis, keep = call.static("axis", -1), int(call.static("keep_dims", False))
    return call.emit(
        "Cast", call.emit("ArgMax", call.tensor("x"), axis=axis, keepdims=keep), to=TensorProto.INT32
    )


def _cumsum(call: Call) -> str:
    axis = call.graph.integers(call.static("axis", 0))
    flags = {name: int(call.static(name, False)) for name in ("exclusive", "reverse")}
    return call.emit("CumSum", call.tensor("x"), axis, **flags)


def _layer_norm(call: Call) -> str:
    rank = call.rank("x")
    axes = sorted(axis % rank for axis in call.static("axes", list(range(rank))))
    if axes != list(range(axes[0], rank)):
        raise call.refuse(f"axes {axes} are not the last ones")
    shape = call.shape("x")[axes[0] :]
    gamma = call.tensor("gamma") if call.has("gamma") else _ones(call, shape)
    beta = [call.tensor("beta")] if call.has("beta") else []
    epsilon = call.static("epsilon", 1e-5)
    return call.emit("LayerNormalization", call.tensor("x"), gamma, *beta, axis=axes[0], epsilon=epsilon)


def _ones(call: Call, shape: tuple[int | None, ...]) -> str:
    if None in shape:
        raise call.refuse("without gamma, the normalised axes must have fixed sizes")
    return call.emit("Expand", call.scalar(1.0), call.graph.integers(shape))


def _softmax(call: Call) -> str:
    return call.emit("Softmax", call.tensor("x"), axis=call.static("axis", -1))


OPERATORS: dict[str, Operator] = {
    **{mil: _reduction(kind) for mil, kind in REDUCTIONS.items()},
    "cumsum": _cumsum,
    "layer_norm": _layer_norm,
    "reduce_argmax": _argmax,
    "softmax": _softmax,
}
