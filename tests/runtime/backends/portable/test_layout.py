"""Reshaping, slicing, gathering and scattering against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

X = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)

# kind, builder arguments, numpy equivalent
REARRANGEMENTS: list[tuple[str, dict[str, Any], Callable[[np.ndarray], np.ndarray]]] = [
    ("reshape", {"shape": [4, -1]}, lambda x: x.reshape(4, -1)),
    ("transpose", {"perm": [0, -1, 1]}, lambda x: x.transpose(0, 2, 1)),
    ("expand_dims", {"axes": [0, -1]}, lambda x: x[None, ..., None]),
    ("slice_by_size", {"begin": [1, 0, 2], "size": [1, -1, 2]}, lambda x: x[1:2, :, 2:4]),
    ("gather", {"indices": np.array([2, 0], np.int32), "axis": 1}, lambda x: x[:, [2, 0]]),
    ("gather", {"indices": np.int32(1), "axis": 0}, lambda x: x[1]),
    ("gather", {"indices": np.array([[0, 3], [1, 1]], np.int32), "axis": -1}, lambda x: x[:, :, [[0, 3], [1, 1]]]),
]  # fmt: skip

SLICES: list[tuple[dict[str, Any], Callable[[np.ndarray], np.ndarray]]] = [
    ({"begin": [0, 1, 0], "end": [2, 3, 4]}, lambda x: x[:, 1:3]),
    ({"begin": [0, 0, -3], "end": [2, 3, -1]}, lambda x: x[:, :, -3:-1]),
    ({"begin": [0, 1, 1], "end": [0, 2, 0], "begin_mask": [True, False, False], "end_mask": [True, False, True]},
     lambda x: x[:, 1:2, 1:]),
    ({"begin": [0, -1, 0], "end": [0, 0, 0], "end_mask": [True, False, True], "squeeze_mask": [False, True, False]},
     lambda x: x[:, -1]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "arguments", "expected"), REARRANGEMENTS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_rearrangement(
    lab: Any, kind: str, arguments: dict[str, Any], expected: Callable[[Any], Any]
) -> None:
    (result,) = lab.run(lambda x: getattr(lab.mb, kind)(x=x, **arguments), {"x": X}, kind)
    np.testing.assert_array_equal(result, expected(X))


@pytest.mark.parametrize(("arguments", "expected"), SLICES)
def test_slice_by_index(lab: Any, arguments: dict[str, Any], expected: Callable[[Any], Any]) -> None:
    (result,) = lab.run(lambda x: lab.mb.slice_by_index(x=x, **arguments), {"x": X}, "slice_by_index")
    np.testing.assert_array_equal(result, expected(X))


@pytest.mark.parametrize("begin", [0, 2, -1])
def test_slice_at_a_computed_position(lab: Any, begin: int) -> None:
    def build(x: Any, at: Any) -> tuple[Any, Any]:
        start = lab.mb.concat(values=[np.array([0], np.int32), at, np.array([1], np.int32)], axis=0)
        masks = {"end_mask": [True, False, True], "begin_mask": [True, True, False]}
        return lab.mb.slice_by_index(
            x=x, begin=start, end=[0, 0, 0], squeeze_mask=[False, True, False], **masks
        )

    (result,) = lab.run(build, {"x": X, "at": np.array([begin], np.int32)}, "slice_by_index")
    np.testing.assert_array_equal(result, X[:, begin, 1:])


def test_squeeze(lab: Any) -> None:
    (result,) = lab.run(lambda x: lab.mb.squeeze(x=x, axes=[0, -1]), {"x": X[None, ..., None]}, "squeeze")
    np.testing.assert_array_equal(result, X)


def test_split(lab: Any) -> None:
    results = lab.run(lambda x: tuple(lab.mb.split(x=x, axis=-1, split_sizes=[3, 1])), {"x": X}, "split")
    np.testing.assert_array_equal(results[0], X[..., :3])
    np.testing.assert_array_equal(results[1], X[..., 3:])


@pytest.mark.parametrize("kind", ["concat", "stack"])
def test_join(lab: Any, kind: str) -> None:
    (result,) = lab.run(lambda x, y: getattr(lab.mb, kind)(values=[x, y], axis=1), {"x": X, "y": -X}, kind)
    np.testing.assert_array_equal(result, {"concat": np.concatenate, "stack": np.stack}[kind]([X, -X], 1))


def test_scalars_join_to_a_vector(lab: Any) -> None:
    def build(x: Any, y: Any) -> Any:
        first, second = (lab.mb.squeeze(x=v) for v in (x, y))
        return lab.mb.concat(values=[first, np.int32(7), second], axis=0)

    inputs = {"x": np.array([3], np.int32), "y": np.array([-4], np.int32)}
    (result,) = lab.run(build, inputs, "concat")
    np.testing.assert_array_equal(result, [3, 7, -4])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_replaces_slices(lab: Any, axis: int) -> None:
    expected = X.copy()
    updates = -1 - np.take(X, [1, 0], axis)
    np.moveaxis(expected, axis, 0)[[1, 0]] = np.moveaxis(updates, axis, 0)

    def build(x: Any, i: Any, u: Any) -> Any:
        return lab.mb.scatter(data=x, indices=i, updates=u, axis=axis, mode="update")

    (result,) = lab.run(build, {"x": X, "i": np.array([1, 0], np.int32), "u": updates}, "scatter")
    np.testing.assert_array_equal(result, expected)


def _slice_update(lab: Any, mask: list[bool], **options: Any) -> Callable[..., Any]:
    def build(x: Any, at: Any, u: Any) -> Any:
        zero = np.array([0], np.int32)
        begin = lab.mb.concat(values=[zero, at, zero], axis=0)
        end = lab.mb.add(x=begin, y=np.int32(u.shape))
        return lab.mb.slice_update(
            x=x, update=u, begin=begin, end=end, begin_mask=mask, end_mask=mask, **options
        )

    return build


@pytest.mark.parametrize(("begin", "rows"), [(0, 1), (1, 2), (2, 1)])
def test_a_slice_is_updated_at_a_computed_position(later_lab: Any, begin: int, rows: int) -> None:
    updates = -X[:, :rows]
    inputs = {"x": X, "at": np.array([begin], np.int32), "u": updates}
    (result,) = later_lab.run(_slice_update(later_lab, [True, False, True]), inputs, "slice_update")
    expected = X.copy()
    expected[:, begin : begin + rows] = updates
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("mask", "options", "reason"),
    [
        ([False, False, True], {}, "a slice of other than one axis"),
        ([True, False, True], {"stride": [1, 2, 1]}, "strides and squeezed axes"),
    ],
)
def test_another_slice_update_is_refused_by_name(
    later_lab: Any, mask: list[bool], options: dict[str, Any], reason: str
) -> None:
    from voxcpm_runtime.backends.portable import PackageError

    inputs = {"x": X, "at": np.array([0], np.int32), "u": X[:, :1]}
    with pytest.raises(PackageError, match=f"slice_update.*{reason}"):
        later_lab.run(_slice_update(later_lab, mask, **options), inputs, "slice_update")
