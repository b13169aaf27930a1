"""Elementwise operations and reductions against numpy and scipy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import special

# kind, builder arguments, numpy or scipy equivalent
OF_ONE: list[tuple[str, dict[str, Any], Any]] = [
    ("abs", {}, np.abs),
    ("cos", {}, np.cos),
    ("exp", {}, np.exp),
    ("identity", {}, np.positive),
    ("round", {}, np.round),
    ("sigmoid", {}, special.expit),
    ("silu", {}, lambda x: x * special.expit(x)),
    ("sin", {}, np.sin),
    ("square", {}, np.square),
    ("tanh", {}, np.tanh),
    ("clip", {"alpha": 0.4, "beta": 2.0}, lambda x: np.clip(x, np.float32(0.4), 2)),
    ("clip", {"alpha": 0.4, "beta": math.inf}, lambda x: np.maximum(x, np.float32(0.4))),
]
OF_A_POSITIVE_NUMBER: list[tuple[str, dict[str, Any], Any]] = [
    ("sqrt", {}, np.sqrt),
    ("rsqrt", {"epsilon": 0.25}, lambda x: 1 / np.sqrt(x + 0.25)),
    ("pow", {"y": np.float32(3)}, lambda x: x**3),
]
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
# Halves distinguish round-half-to-even from round-half-up.
POINTS = np.array([[-2.5, -1.5, -0.5, 0.0, 0.5, 1.5], [2.5, 0.3, -7.25, 3.0, -3.0, 9.0]], np.float32)


@pytest.mark.parametrize(("kind", "arguments", "expected"), [*OF_ONE, *OF_A_POSITIVE_NUMBER])
def test_of_one_number(lab: Any, kind: str, arguments: dict[str, Any], expected: Any) -> None:
    x = np.abs(POINTS) if kind in [kind for kind, *_ in OF_A_POSITIVE_NUMBER] else POINTS
    (result,) = lab.run(lambda x: getattr(lab.mb, kind)(x=x, **arguments), {"x": x}, kind)
    np.testing.assert_allclose(result, expected(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", OF_TWO)
def test_of_two_numbers(lab: Any, kind: str) -> None:
    inputs = {"x": POINTS, "y": np.array([[-2.5], [3]], np.float32)}
    (result,) = lab.run(
        lambda x, y: lab.mb.cast(x=getattr(lab.mb, kind)(x=x, y=y), dtype="fp32"), inputs, kind
    )
    np.testing.assert_allclose(result, OF_TWO[kind](*inputs.values()), rtol=1e-6, atol=1e-6)


def test_integers_stay_integers(lab: Any) -> None:
    inputs = {"x": np.array([7, -7, 7, -7, 6], np.int32), "y": np.array([2, 2, -2, -2, 3], np.int32)}
    (result,) = lab.run(lambda x, y: lab.mb.mul(x=lab.mb.add(x=x, y=y), y=y), inputs, "mul")
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, (inputs["x"] + inputs["y"]) * inputs["y"])


def test_casts_and_choices(lab: Any) -> None:
    def build(x: Any, y: Any) -> tuple[Any, Any]:
        positive = lab.mb.greater(x=x, y=np.float32(0))
        both = lab.mb.logical_and(x=positive, y=lab.mb.less(x=x, y=np.float32(2)))
        return lab.mb.cast(x=x, dtype="int32"), lab.mb.select(cond=both, a=x, b=y)

    truncated, chosen = lab.run(build, {"x": POINTS, "y": -10 - POINTS}, "select")
    np.testing.assert_array_equal(truncated, np.trunc(POINTS))
    np.testing.assert_array_equal(chosen, np.where((POINTS > 0) & (POINTS < 2), POINTS, -10 - POINTS))


@pytest.mark.parametrize(("axes", "keep"), [([-1], True), ([0, 2], False)])
@pytest.mark.parametrize(("kind", "expected"), [("max", np.max), ("mean", np.mean), ("sum", np.sum)])
def test_reduction(
    lab: Any, rng: np.random.Generator, kind: str, expected: Any, axes: list[int], keep: bool
) -> None:
    x, kind = rng.standard_normal((3, 4, 5)).astype(np.float32), f"reduce_{kind}"
    (result,) = lab.run(lambda x: getattr(lab.mb, kind)(x=x, axes=axes, keep_dims=keep), {"x": x}, kind)
    np.testing.assert_allclose(result, expected(x, axis=tuple(axes), keepdims=keep), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax(lab: Any, rng: np.random.Generator, axis: int) -> None:
    x = rng.standard_normal((2, 3, 4)).astype(np.float32) * 30
    (result,) = lab.run(lambda x: lab.mb.softmax(x=x, axis=axis), {"x": x}, "softmax")
    np.testing.assert_allclose(result, special.softmax(x, axis), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("exclusive", "reverse", "expected"),
    [(False, False, [3, 4, 8, 9, 14]), (True, False, [0, 3, 4, 8, 9]), (False, True, [14, 11, 10, 6, 5])],
)
def test_cumsum(lab: Any, exclusive: bool, reverse: bool, expected: list[int]) -> None:
    x, flags = np.array([3, 1, 4, 1, 5], np.int32), {"exclusive": exclusive, "reverse": reverse}
    (result,) = lab.run(lambda x: lab.mb.cumsum(x=x, axis=0, **flags), {"x": x}, "cumsum")
    np.testing.assert_array_equal(result, expected)
