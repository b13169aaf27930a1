from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

from voxcpm_runtime.backends.portable import PackageError

# Halves distinguish round-half-to-even from round-half-up.
POINTS = np.array([[-2.5, -1.5, -0.5, 0.0, 0.5, 1.5], [2.5, 0.3, -7.25, 3.0, -3.0, 9.0]], np.float32)
X = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)

Case = tuple[str, dict[str, Any], Callable[[Any], Any]]
"""Kind, arguments of the builder, and the same in numpy."""
OF_ANY_NUMBER = [
    ("abs", {}, np.abs),
    ("cos", {}, np.cos),
    ("exp", {}, np.exp),
    ("round", {}, np.round),
    ("sigmoid", {}, special.expit),
    ("silu", {}, lambda x: x * special.expit(x)),
    ("sin", {}, np.sin),
    ("square", {}, np.square),
    ("tanh", {}, np.tanh),
    ("softmax", {"axis": 0}, lambda x: special.softmax(x, 0)),
    ("softmax", {"axis": -1}, lambda x: special.softmax(x, -1)),
]
OF_A_POSITIVE_NUMBER = [
    ("sqrt", {}, np.sqrt),
    ("rsqrt", {"epsilon": 0.25}, lambda x: 1 / np.sqrt(x + 0.25)),
    ("pow", {"y": np.float32(3)}, lambda x: x**3),
]
ON_AXES = [
    ("reduce_max", {"axes": [-1], "keep_dims": True}, lambda x: x.max(-1, keepdims=True)),
    ("reduce_mean", {"axes": [0, 2]}, lambda x: x.mean((0, 2))),
    ("reduce_sum", {"axes": [1]}, lambda x: x.sum(1)),
    ("cumsum", {"axis": 1}, lambda x: x.cumsum(1)),
    ("cumsum", {"axis": 2, "exclusive": True}, lambda x: x.cumsum(2) - x),
    ("cumsum", {"axis": 2, "reverse": True}, lambda x: x[..., ::-1].cumsum(2)[..., ::-1]),
    ("reshape", {"shape": [4, -1]}, lambda x: x.reshape(4, -1)),
    ("transpose", {"perm": [0, -1, 1]}, lambda x: x.transpose(0, 2, 1)),
    ("expand_dims", {"axes": [0, -1]}, lambda x: x[None, ..., None]),
    ("slice_by_size", {"begin": [1, 0, 2], "size": [1, -1, 2]}, lambda x: x[1:2, :, 2:4]),
    ("gather", {"indices": np.array([2, 0], np.int32), "axis": 1}, lambda x: x[:, [2, 0]]),
    ("gather", {"indices": np.int32(1), "axis": 0}, lambda x: x[1]),
    ("gather", {"indices": np.array([[0, 3], [1, 1]], np.int32), "axis": -1}, lambda x: x[:, :, [[0, 3], [1, 1]]]),
    ("slice_by_index", {"begin": [0, 1, 0], "end": [2, 3, 4]}, lambda x: x[:, 1:3]),
    ("slice_by_index", {"begin": [0, 0, -3], "end": [2, 3, -1]}, lambda x: x[:, :, -3:-1]),
    ("slice_by_index", {"begin": [0, 1, 1], "end": [0, 2, 0], "begin_mask": [True, False, False],
                        "end_mask": [True, False, True]}, lambda x: x[:, 1:2, 1:]),
    ("slice_by_index", {"begin": [0, -1, 0], "end": [0, 0, 0], "end_mask": [True, False, True],
                        "squeeze_mask": [False, True, False]}, lambda x: x[:, -1]),
    ("tile", {"reps": [2, 1, 3]}, lambda x: np.tile(x, (2, 1, 3))),
    ("pad", {"pad": [1, 0, 2, 3]}, lambda x: np.pad(x, [(0, 0), (1, 0), (2, 3)])),
    ("pad", {"pad": [0, 0, 2, 0, 0, 1], "mode": "constant", "constant_val": np.float32(-7)},
     lambda x: np.pad(x, [(0, 0), (2, 0), (0, 1)], constant_values=-7)),
    ("pad", {"pad": [2, 1], "mode": "reflect"}, lambda x: np.pad(x, [(0, 0), (0, 0), (2, 1)], "reflect")),
    ("pad", {"pad": [2, 1], "mode": "replicate"}, lambda x: np.pad(x, [(0, 0), (0, 0), (2, 1)], "edge")),
]  # fmt: skip
OF_TWO = {
    "add": np.add,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mul": np.multiply,
    "real_div": np.divide,
    "sub": np.subtract,
    "equal": np.equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}


@pytest.mark.parametrize(
    ("x", "cases"), [(POINTS, OF_ANY_NUMBER), (np.abs(POINTS), OF_A_POSITIVE_NUMBER), (X, ON_AXES)]
)
def test_of_one_tensor(lab, x, cases):
    def build(x):
        return tuple(getattr(lab.mb, kind)(x=x, **arguments) for kind, arguments, _ in cases)

    results = lab.run(build, {"x": x}, cases[0][0])
    for (kind, arguments, expected), result in zip(cases, results, strict=True):
        np.testing.assert_allclose(result, expected(x), 1e-5, 1e-6, err_msg=f"{kind} {arguments}")


def test_of_two_tensors(lab):
    inputs = {"x": POINTS, "y": np.array([[-2.5], [3]], np.float32)}

    def build(x, y):
        return tuple(lab.mb.cast(x=getattr(lab.mb, kind)(x=x, y=y), dtype="fp32") for kind in OF_TWO)

    for (kind, expected), result in zip(OF_TWO.items(), lab.run(build, inputs, "add"), strict=True):
        np.testing.assert_allclose(result, expected(*inputs.values()), 1e-6, 1e-6, err_msg=kind)


def test_integers_stay_integers(lab):
    inputs = {"x": np.array([7, -7, 7, -7, 6], np.int32), "y": np.array([2, 2, -2, -2, 3], np.int32)}
    (result,) = lab.run(lambda x, y: lab.mb.mul(x=lab.mb.add(x=x, y=y), y=y), inputs, "mul")
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, (inputs["x"] + inputs["y"]) * inputs["y"])


def test_casts_and_choices(lab):
    def build(x, y):
        half = lab.mb.tanh(x=lab.mb.cast(x=x, dtype="fp16"))
        positive = lab.mb.greater(x=x, y=np.float32(0))
        both = lab.mb.logical_and(x=positive, y=lab.mb.less(x=x, y=np.float32(2)))
        chosen = lab.mb.select(cond=both, a=x, b=y)
        return lab.mb.cast(x=x, dtype="int32"), chosen, lab.mb.cast(x=half, dtype="fp32")

    truncated, chosen, half = lab.run(build, {"x": POINTS, "y": -10 - POINTS}, "select")
    np.testing.assert_array_equal(truncated, np.trunc(POINTS))
    np.testing.assert_allclose(half, np.tanh(POINTS), atol=1e-3)
    np.testing.assert_array_equal(chosen, np.where((POINTS > 0) & (POINTS < 2), POINTS, -10 - POINTS))


def test_splitting_and_joining(lab):
    def build(x, y):
        values = [lab.mb.squeeze(x=lab.mb.slice_by_size(x=x, begin=[0] * 3, size=[1] * 3)), np.float32(7)]
        return (
            *lab.mb.split(x=x, axis=-1, split_sizes=[3, 1]),
            lab.mb.concat(values=[x, y], axis=1),
            lab.mb.stack(values=[x, y], axis=1),
            lab.mb.squeeze(x=lab.mb.expand_dims(x=lab.mb.abs(x=y), axes=[0, -1]), axes=[0, -1]),
            lab.mb.concat(values=values, axis=0),  # scalars
        )

    x = X + 1
    results = lab.run(build, {"x": x, "y": -x}, "stack")
    expected = [x[..., :3], x[..., 3:], np.concatenate([x, -x], 1), np.stack([x, -x], 1), x, [1, 7]]
    for result, values in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, values)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", ["scatter", "scatter_along_axis"])
def test_scatter_replaces_slices_or_elements(lab, kind, axis):
    updates, expected = -1 - np.take(X, [1, 0], axis), X.copy()
    # Both indices; of elements, in an order that differs by place.
    indices = np.array([1, 0]) if kind == "scatter" else np.take(np.indices(X.shape).sum(0), [0, 1], axis) % 2
    if kind == "scatter":
        np.moveaxis(expected, axis, 0)[indices] = np.moveaxis(updates, axis, 0)
    else:
        np.put_along_axis(expected, indices, updates, axis)

    def build(x, i, u):
        return getattr(lab.mb, kind)(data=x, indices=i, updates=u, axis=axis, mode="update")

    (result,) = lab.run(build, {"x": X, "i": indices.astype(np.int32), "u": updates}, kind)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("axes", [1, 2])
def test_scatter_nd_replaces_slices_at_indices_on_the_first_axes(lab, axes):
    indices = np.array([[1, 0], [0, 1]], np.int32)[:, :axes]
    updates = -1 - X[tuple(indices.T)]
    expected = X.copy()
    expected[tuple(indices.T)] = updates

    def build(x, i, u):
        return lab.mb.scatter_nd(data=x, indices=i, updates=u, mode="update")

    (result,) = lab.run(build, {"x": X, "i": indices, "u": updates}, "scatter_nd")
    np.testing.assert_array_equal(result, expected)


def _slice_update(lab, mask, **options):
    def build(x, at, u):
        zero = np.array([0], np.int32)
        begin = lab.mb.concat(values=[zero, at, zero], axis=0)
        end = lab.mb.add(x=begin, y=np.int32(u.shape))
        masks = {"begin_mask": mask, "end_mask": mask}
        return lab.mb.slice_update(x=x, update=u, begin=begin, end=end, **masks, **options)

    return build


@pytest.mark.parametrize("mode", ["plain", "faithful"])
@pytest.mark.parametrize(("begin", "rows"), [(1, 2), (2, 1)])
def test_a_slice_is_updated_at_a_computed_position(later_lab, begin, rows, mode):
    inputs = {"x": X, "at": np.array([begin], np.int32), "u": -X[:, :rows]}
    build = _slice_update(later_lab, [True, False, True])
    (result,) = later_lab.run(build, inputs, "slice_update", mode=mode)
    expected = X.copy()
    expected[:, begin : begin + rows] = inputs["u"]
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("mask", "options", "reason"),
    [
        ([False, False, True], {}, "a slice of other than one axis"),
        ([True, False, True], {"stride": [1, 2, 1]}, "strides and squeezed axes"),
    ],
)
def test_another_slice_update_is_refused_by_name(later_lab, mask, options, reason):
    inputs = {"x": X, "at": np.array([0], np.int32), "u": X[:, :1]}
    with pytest.raises(PackageError, match=f"slice_update.*{reason}"):
        later_lab.run(_slice_update(later_lab, mask, **options), inputs, "slice_update")
