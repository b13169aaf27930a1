"""Elementwise operations against numpy and scipy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import special

UNARY = {
    "abs": np.abs,
    "cos": np.cos,
    "exp": np.exp,
    "round": np.round,
    "sigmoid": special.expit,
    "silu": lambda x: x * special.expit(x),
    "sin": np.sin,
    "square": np.square,
    "tanh": np.tanh,
}
BINARY = {
    "add": np.add,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mul": np.multiply,
    "real_div": np.divide,
    "sub": np.subtract,
}
INTEGER = ("add", "sub", "mul", "maximum", "minimum")
COMPARISONS = {
    "equal": np.equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
# Halves distinguish round-half-to-even from round-half-up.
POINTS = np.array([[-2.5, -1.5, -0.5, 0.0, 0.5, 1.5], [2.5, 0.3, -7.25, 3.0, -3.0, 9.0]], np.float32)


@pytest.mark.parametrize("kind", UNARY)
def test_unary(lab: Any, kind: str) -> None:
    (result,) = lab.run(lambda x: getattr(lab.mb, kind)(x=x), {"x": POINTS}, kind)
    np.testing.assert_allclose(result, UNARY[kind](POINTS), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_identity(lab: Any, dtype: Any) -> None:
    x = POINTS.astype(dtype)
    (result,) = lab.run(lambda x: lab.mb.identity(x=x), {"x": x}, "identity")
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, x)


def test_sqrt(lab: Any) -> None:
    (result,) = lab.run(lambda x: lab.mb.sqrt(x=x), {"x": np.abs(POINTS)}, "sqrt")
    np.testing.assert_allclose(result, np.sqrt(np.abs(POINTS)), rtol=1e-6)


@pytest.mark.parametrize("epsilon", [1e-4, 0.25])
def test_rsqrt_adds_epsilon_to_the_operand(lab: Any, epsilon: float) -> None:
    x = np.array([1e-4, 0.5, 3.0, 4e4], np.float32)
    (result,) = lab.run(lambda x: lab.mb.rsqrt(x=x, epsilon=epsilon), {"x": x}, "rsqrt")
    np.testing.assert_allclose(result, 1 / np.sqrt(x.astype(np.float64) + epsilon), rtol=1e-5)


@pytest.mark.parametrize("kind", BINARY)
def test_binary_broadcasts(lab: Any, kind: str) -> None:
    inputs = {"x": POINTS, "y": np.array([[-2.0], [1.75]], np.float32)}
    (result,) = lab.run(lambda x, y: getattr(lab.mb, kind)(x=x, y=y), inputs, kind)
    np.testing.assert_allclose(result, BINARY[kind](*inputs.values()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", INTEGER)
def test_binary_integers(lab: Any, kind: str) -> None:
    inputs = {"x": np.array([7, -7, 7, -7, 6], np.int32), "y": np.array([2, 2, -2, -2, 3], np.int32)}
    (result,) = lab.run(lambda x, y: getattr(lab.mb, kind)(x=x, y=y), inputs, kind)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, BINARY[kind](*inputs.values()))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("kind", COMPARISONS)
def test_comparison(lab: Any, kind: str, dtype: Any) -> None:
    inputs = {"x": np.array([1, 2, 3], dtype), "y": np.array([2, 2, 2], dtype)}

    def build(x: Any, y: Any) -> Any:
        return lab.mb.cast(x=getattr(lab.mb, kind)(x=x, y=y), dtype="int32")

    (result,) = lab.run(build, inputs, kind)
    np.testing.assert_array_equal(result, COMPARISONS[kind](*inputs.values()))


def test_logical_and(lab: Any) -> None:
    inputs = {"x": np.array([0, 0, 1, 1], np.int32), "y": np.array([0, 1, 0, 1], np.int32)}

    def build(x: Any, y: Any) -> Any:
        x, y = (lab.mb.cast(x=v, dtype="bool") for v in (x, y))
        return lab.mb.cast(x=lab.mb.logical_and(x=x, y=y), dtype="int32")

    (result,) = lab.run(build, inputs, "logical_and")
    np.testing.assert_array_equal(result, [0, 0, 0, 1])


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5])
def test_power(lab: Any, exponent: float) -> None:
    x = np.abs(POINTS)
    (result,) = lab.run(lambda x: lab.mb.pow(x=x, y=np.float32(exponent)), {"x": x}, "pow")
    np.testing.assert_allclose(result, x**exponent, rtol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 2.0), (1e-3, math.inf), (-math.inf, 0.5)])
def test_clip(lab: Any, low: float, high: float) -> None:
    (result,) = lab.run(lambda x: lab.mb.clip(x=x, alpha=low, beta=high), {"x": POINTS}, "clip")
    np.testing.assert_array_equal(result, np.clip(POINTS, np.float32(low), np.float32(high)))


def test_cast_to_integer_truncates(lab: Any) -> None:
    (result,) = lab.run(lambda x: lab.mb.cast(x=x, dtype="int32"), {"x": POINTS}, "cast")
    np.testing.assert_array_equal(result, np.trunc(POINTS))


def test_select(lab: Any) -> None:
    inputs = {"x": POINTS, "y": -10 - POINTS}

    def build(x: Any, y: Any) -> Any:
        return lab.mb.select(cond=lab.mb.greater(x=x, y=np.float32(0)), a=x, b=y)

    (result,) = lab.run(build, inputs, "select")
    np.testing.assert_array_equal(result, np.where(POINTS > 0, POINTS, -10 - POINTS))
