"""The rewrites of fusion.py apply only to their exact formulas, and do not change results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from voxcpm_runtime.backends.portable import PortableStepModel
from voxcpm_runtime.backends.portable.cache import load_lowered

FUSED = b"SimplifiedLayerNormalization"
EPSILON = 1e-5


def rms_norm(mb: Any, x: Any, weight: np.ndarray, **changes: Any) -> Any:
    """The fp16-safe RMSNorm of the step models, with one property changed."""
    axes = changes.get("axes", [-1])
    peak = mb.reduce_max(x=mb.abs(x=x), axes=axes, keep_dims=True)
    peak = mb.maximum(x=peak, y=np.array([1e-3], np.float32))
    y = mb.real_div(x=x, y=peak)
    other = x if changes.get("another") else y
    mean = mb.reduce_mean(x=mb.mul(x=y, y=other), axes=axes, keep_dims=True)
    relative = mb.real_div(x=np.array([EPSILON**0.5], np.float32), y=peak)
    total = mb.add(x=mean, y=mb.mul(x=relative, y=relative))
    inverse = mb.rsqrt(x=total, epsilon=changes.get("tiny", 1e-12))
    return mb.mul(x=mb.mul(x=y, y=inverse), y=weight)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 3e4])
def test_rms_norm_becomes_one_node(lab: Any, rng: np.random.Generator, scale: float) -> None:
    x = (scale * rng.standard_normal((2, 3, 16))).astype(np.float32)
    weight = rng.standard_normal(16).astype(np.float32)
    package = lab.package(lambda x: rms_norm(lab.mb, x, weight), {"x": x})
    (result,) = PortableStepModel(package, threads=1)({"x": x}).values()
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPSILON) * weight
    np.testing.assert_allclose(result, expected, rtol=2e-6)
    lowered = load_lowered(package).model
    assert FUSED in lowered
    assert b"ReduceMean" not in lowered


OTHERS = [{"axes": [1]}, {"tiny": 1e-3}, {"another": True}]


@pytest.mark.parametrize("changes", OTHERS, ids=str)
def test_a_formula_that_differs_stays_as_it_is(
    lab: Any, rng: np.random.Generator, changes: dict[str, Any]
) -> None:
    weight = rng.standard_normal(16).astype(np.float32)
    package = lab.package(lambda x: rms_norm(lab.mb, x, weight, **changes), {"x": ("float32", (2, 3, 16))})
    assert FUSED not in load_lowered(package).model


def test_faithful_mode_keeps_every_operation(lab: Any, rng: np.random.Generator) -> None:
    weight = rng.standard_normal(16).astype(np.float32)
    package = lab.package(lambda x: rms_norm(lab.mb, x, weight), {"x": ("float32", (2, 3, 16))})
    assert FUSED not in load_lowered(package, mode="faithful").model
