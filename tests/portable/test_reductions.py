"""Operations along axes against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

REDUCTIONS = {
    "reduce_max": np.max,
    "reduce_mean": np.mean,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
    "reduce_sum": np.sum,
    "reduce_l2_norm": lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims)),
    "reduce_sum_square": lambda x, axis, keepdims: np.sum(x * x, axis=axis, keepdims=keepdims),
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


def test_argmax(lab: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    (result,) = lab.run(
        lambda x: lab.mb.reduce_argmax(x=x, axis=1, keep_dims=False), {"x": x}, "reduce_argmax"
    )
    np.testing.assert_array_equal(result, x.argmax(1))


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax(lab: Any, rng: np.random.Generator, axis: int) -> None:
    x = rng.standard_normal((2, 3, 4)).astype(np.float32) * 30
    (result,) = lab.run(lambda x: lab.mb.softmax(x=x, axis=axis), {"x": x}, "softmax")
    exponentials = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    np.testing.assert_allclose(
        result, exponentials / exponentials.sum(axis, keepdims=True), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm(lab: Any, rng: np.random.Generator, affine: bool) -> None:
    x = rng.standard_normal((2, 3, 8)).astype(np.float32)
    gamma, beta = rng.standard_normal((2, 8)).astype(np.float32)
    weights = {"gamma": gamma, "beta": beta} if affine else {}
    (result,) = lab.run(
        lambda x: lab.mb.layer_norm(x=x, axes=[-1], epsilon=1e-3, **weights), {"x": x}, "layer_norm"
    )
    centred = x - x.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(result, expected * gamma + beta if affine else expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("exclusive", "reverse"), [(False, False), (True, True)])
def test_cumsum(lab: Any, exclusive: bool, reverse: bool) -> None:
    x = np.array([[1, 2, 4, 8]], np.float32)
    expected = [[14, 12, 8, 0]] if exclusive else [[1, 3, 7, 15]]
    (result,) = lab.run(
        lambda x: lab.mb.cumsum(x=x, axis=1, exclusive=exclusive, reverse=reverse), {"x": x}, "cumsum"
    )
    np.testing.assert_array_equal(result, expected)
