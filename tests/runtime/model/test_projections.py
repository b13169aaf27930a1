"""The arithmetic between the step models."""

from __future__ import annotations

import numpy as np
import pytest

from voxcpm_constants.arrays import FUSION, LM_TO_DIT, RESIDUAL_TO_DIT
from voxcpm_constants.generations import GENERATIONS
from voxcpm_runtime.model.projections import FEW_ROWS, Projections, projections

WIDTH = 8


class Rows(np.ndarray):
    """An array that notes whether numpy's BLAS multiplies it."""

    def __matmul__(self, other: np.ndarray) -> np.ndarray:  # type: ignore[override]
        by_blas.append(self.shape)
        return np.asarray(self) @ other


by_blas: list[tuple[int, ...]] = []


def made(generation: str) -> tuple[Projections, dict[str, np.ndarray]]:
    generator, fused = np.random.default_rng(0), {FUSION: 2}
    constants = {
        name: generator.standard_normal(shape).astype(np.float32)
        for stem in (LM_TO_DIT, RESIDUAL_TO_DIT, FUSION)
        for name, shape in ((f"{stem}_w", (WIDTH, WIDTH * fused.get(stem, 1))), (f"{stem}_b", WIDTH))
    }
    return projections(GENERATIONS[generation], constants), constants  # type: ignore[index]


@pytest.mark.parametrize("shape", [(WIDTH,), (1, WIDTH), (FEW_ROWS, WIDTH), (1, FEW_ROWS + 1, WIDTH)])
def test_the_dits_condition_and_the_residual_input_are_what_upstream_computes(shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(1)
    hidden, other = (generator.standard_normal(shape).astype(np.float32) for _ in range(2))
    for generation, joined in (("voxcpm", sum), ("voxcpm2", lambda both: np.concatenate(both, axis=-1))):
        found, constants = made(generation)
        both = [
            rows @ constants[f"{stem}_w"].T + constants[f"{stem}_b"]
            for rows, stem in ((hidden, LM_TO_DIT), (other, RESIDUAL_TO_DIT))
        ]
        np.testing.assert_allclose(found.dit_condition(hidden, other), joined(both), rtol=1e-5, atol=1e-6)
    fused = np.concatenate((hidden, other), axis=-1) @ constants[f"{FUSION}_w"].T + constants[f"{FUSION}_b"]
    np.testing.assert_allclose(found.residual_input(hidden, other), fused, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(made("voxcpm")[0].residual_input(hidden, other), hidden + other)


@pytest.mark.parametrize(("rows", "expected"), [(1, 0), (FEW_ROWS, 0), (FEW_ROWS + 1, 2)])
def test_the_rows_of_a_patch_do_not_wake_the_threads_of_numpys_blas(rows: int, expected: int) -> None:
    hidden = np.ones((rows, WIDTH), np.float32).view(Rows)
    by_blas.clear()
    made("voxcpm")[0].dit_condition(hidden, hidden)
    assert len(by_blas) == expected
