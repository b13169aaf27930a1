"""Attention is cut behind its last position, where its mask is seen to hide what follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_runtime.backends.portable import PortableStepModel
from voxcpm_runtime.backends.portable.cache import load_lowered

LENGTH, WIDTH, ROWS = 200, 8, 2


def attention(mb: Any, q: Any, k: Any, v: Any, position: Any, **changes: Any) -> Any:
    """One head over a cache of 200 positions, as the step models have it, with one property changed."""
    counted = np.arange(LENGTH, dtype=np.int32) + np.int32(changes.get("first", 0))
    later = mb.greater(x=counted, y=mb.expand_dims(x=position, axes=[1]))
    mask = mb.mul(x=mb.cast(x=later, dtype="fp32"), y=np.float32(changes.get("penalty", -1e4)))
    weights = mb.softmax(x=mb.add(x=mb.matmul(x=q, y=k, transpose_y=True), y=mask), axis=-1)
    return mb.matmul(x=weights, y=v)


def packaged(lab: Any, inputs: dict[str, np.ndarray], **changes: Any) -> Path:
    def build(q: Any, k: Any, v: Any, position: Any) -> Any:
        return attention(lab.mb, q, k, v, position, **changes)

    package: Path = lab.package(build, inputs)
    return package


def inputs_at(rng: np.random.Generator, *positions: int) -> dict[str, np.ndarray]:
    def normal(rows: int) -> np.ndarray:
        return rng.standard_normal((1, 1, rows, WIDTH)).astype(np.float32)

    return {
        "q": normal(ROWS),
        "k": normal(LENGTH),
        "v": normal(LENGTH),
        "position": np.array(positions, np.int32),
    }


@pytest.mark.parametrize("positions", [(0, 1), (62, 63), (63, 64), (198, 199), (150, 3)])
def test_the_result_is_that_of_the_whole_cache(
    lab: Any, rng: np.random.Generator, positions: tuple[int, int]
) -> None:
    inputs = inputs_at(rng, *positions)
    (result,) = PortableStepModel(packaged(lab, inputs), threads=1)(inputs).values()
    for row, position in enumerate(positions):
        seen = slice(position + 1)
        scores = inputs["k"][0, 0, seen] @ inputs["q"][0, 0, row].astype(np.float64)
        weights = np.exp(scores - scores.max())
        expected = weights / weights.sum() @ inputs["v"][0, 0, seen]
        np.testing.assert_allclose(result[0, 0, row], expected, rtol=1e-5, atol=1e-6)


def test_what_lies_behind_the_cut_is_not_read(lab: Any, rng: np.random.Generator) -> None:
    inputs = inputs_at(rng, 4, 5)
    inputs["k"][:, :, 64:] = inputs["v"][:, :, 64:] = np.nan
    (result,) = PortableStepModel(packaged(lab, inputs), threads=1)(inputs).values()
    assert np.isfinite(result).all()


@pytest.mark.parametrize("changes", [{"penalty": -1.0}, {"first": 1}], ids=str)
def test_another_mask_is_left_alone(lab: Any, rng: np.random.Generator, changes: dict[str, Any]) -> None:
    package = packaged(lab, inputs_at(rng, 4, 5), **changes)
    assert b"Slice" not in load_lowered(package).model


def test_faithful_mode_keeps_the_whole_cache(lab: Any, rng: np.random.Generator) -> None:
    package = packaged(lab, inputs_at(rng, 4, 5))
    assert b"Slice" in load_lowered(package).model
    assert b"Slice" not in load_lowered(package, mode="faithful").model
