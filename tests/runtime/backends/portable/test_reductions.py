"""Operations along axes against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

REDUCTIONS = {
    "reduce_max": np.max,
    "reduce_mean": np.mean,
    "reduce_sum": np.sum,
}


@pytest.mark.parametrize(("axes", "keep"), [([-1], True), ([0, 2], False)])
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reduction(lab: Any, rng: np.random.Generator, kind: str, axes: list[int], keep: bool) -> None:
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    (result,) = lab.run(lambda x: getattr(lab.mb, kind)(x=x, axes=axes, keep_dims=keep), {"x": x}, kind)
    np.testing.assert_allclose(
        result, REDUCTIONS[kind](x, axis=tuple(axes), keepdims=keep), rtol=1e-5, atol=1e-6
    )


def test_reduction_over_everything(lab: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 4)).astype(np.float32)
    (result,) = lab.run(lambda x: lab.mb.reduce_max(x=x, keep_dims=True), {"x": x}, "reduce_max")
    np.testing.assert_array_equal(result, x.max(keepdims=True))


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax(lab: Any, rng: np.random.Generator, axis: int) -> None:
    x = rng.standard_normal((2, 3, 4)).astype(np.float32) * 30
    (result,) = lab.run(lambda x: lab.mb.softmax(x=x, axis=axis), {"x": x}, "softmax")
    exponentials = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    np.testing.assert_allclose(
        result, exponentials / exponentials.sum(axis, keepdims=True), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize(("exclusive", "reverse"), [(False, False), (True, False), (False, True)])
def test_cumsum(lab: Any, exclusive: bool, reverse: bool) -> None:
    x = np.array([3, 1, 4, 1, 5], np.int32)
    flags = {"exclusive": exclusive, "reverse": reverse}
    (result,) = lab.run(lambda x: lab.mb.cumsum(x=x, axis=0, **flags), {"x": x}, "cumsum")
    expected = {
        (False, False): [3, 4, 8, 9, 14],
        (True, False): [0, 3, 4, 8, 9],
        (False, True): [14, 11, 10, 6, 5],
    }
    np.testing.assert_array_equal(result, expected[exclusive, reverse])
