from pathlib import Path

import numpy as np
import pytest

from voxcpm_runtime.backends.portable import PortableStepModel
from voxcpm_runtime.backends.portable.cache import load_lowered

LENGTH, WIDTH, ROWS = 200, 8, 2
EPSILON = 1e-5
FUSED = b"SimplifiedLayerNormalization"


def rms_norm(mb, x, weight, **changes):
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


@pytest.mark.parametrize("scale", [1e-4, 3e4])
def test_rms_norm_becomes_one_node(lab, rng, scale):
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
    assert FUSED not in load_lowered(package, mode="faithful").model


@pytest.mark.parametrize("changes", [{"axes": [1]}, {"tiny": 1e-3}, {"another": True}], ids=str)
def test_other_formulas_are_not_rewritten(lab, rng, changes):
    weight = rng.standard_normal(16).astype(np.float32)
    package = lab.package(lambda x: rms_norm(lab.mb, x, weight, **changes), {"x": ("float32", (2, 3, 16))})
    assert FUSED not in load_lowered(package).model


def attention(lab, inputs, **changes):
    """A package of one head over a cache of 200 positions, as in the step models, with one property changed."""
    mb = lab.mb

    def build(q, k, v, position):
        counted = np.arange(LENGTH, dtype=np.int32) + np.int32(changes.get("first", 0))
        later = mb.greater(x=counted, y=mb.expand_dims(x=position, axes=[1]))
        mask = mb.mul(x=mb.cast(x=later, dtype="fp32"), y=np.float32(changes.get("penalty", -1e4)))
        weights = mb.softmax(x=mb.add(x=mb.matmul(x=q, y=k, transpose_y=True), y=mask), axis=-1)
        return mb.matmul(x=weights, y=v)

    package: Path = lab.package(build, inputs)
    return package


def inputs_at(rng, *positions):
    rows = {"q": ROWS, "k": LENGTH, "v": LENGTH}
    arrays = {name: rng.standard_normal((1, 1, n, WIDTH)).astype(np.float32) for name, n in rows.items()}
    return {**arrays, "position": np.array(positions, np.int32)}


@pytest.mark.parametrize("positions", [(0, 1), (62, 63), (63, 64), (198, 199), (150, 3)])
def test_attention_reads_its_cache_up_to_the_last_position(lab, rng, positions):
    inputs = inputs_at(rng, *positions)
    unread = (max(positions) // 64 + 1) * 64
    inputs["k"][:, :, unread:] = inputs["v"][:, :, unread:] = np.nan
    (result,) = PortableStepModel(attention(lab, inputs), threads=1)(inputs).values()
    for row, position in enumerate(positions):
        seen = slice(position + 1)
        scores = inputs["k"][0, 0, seen] @ inputs["q"][0, 0, row].astype(np.float64)
        weights = np.exp(scores - scores.max())
        expected = weights / weights.sum() @ inputs["v"][0, 0, seen]
        np.testing.assert_allclose(result[0, 0, row], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changes", [{"penalty": -1.0}, {"first": 1}], ids=str)
def test_other_masks_are_not_rewritten(lab, rng, changes):
    package = attention(lab, inputs_at(rng, 4, 5), **changes)
    assert b"Slice" not in load_lowered(package).model
