"""The DiT's condition and the residual LM's input: arithmetic between the step models that differs by generation.

| | DiT condition | residual LM input |
|---|---|---|
| voxcpm | lm_to_dit(hidden) + res_to_dit(residual) | hidden + embedding |
| voxcpm2 | both side by side | fusion(hidden, embedding) |

Source: upstream `model/voxcpm.py` and `model/voxcpm2.py`, `_inference`. `voxcpm_constants.generations` says which
generation does what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxcpm_constants.arrays import FUSION, LM_TO_DIT, RESIDUAL_TO_DIT
from voxcpm_constants.generations import Traits
from voxcpm_runtime.backends.step_function import Floats

FEW_ROWS = 4
"""Up to so many rows are multiplied by numpy itself, on the calling thread.

Its BLAS has threads that wait for the next product by spinning, for 0.1 s, on cores that the step models need: a patch
took a fifth longer (TRIALS.md). For more rows, as in a prefill, BLAS is several times faster.
"""

Join = Callable[[Floats, Floats], Floats]  # A function from two arrays (..., width) to one


@dataclass(frozen=True)
class Projections:
    """The two functions of a bundle, over rows (..., hidden)."""

    dit_condition: Join  # (lm_hidden, residual_hidden) -> mu (..., mu_size)
    residual_input: Join  # (lm_hidden, embedding, zero at text positions) -> (..., hidden)


def projections(traits: Traits, constants: Mapping[str, npt.NDArray[np.floating]]) -> Projections:
    """The functions of a generation, over a bundle's constants (`voxcpm_constants.arrays`)."""
    lm, residual = _linear(constants, LM_TO_DIT), _linear(constants, RESIDUAL_TO_DIT)
    join = added if traits.mu_tokens == 1 else side_by_side
    return Projections(
        dit_condition=lambda hidden, residual_hidden: join(lm(hidden), residual(residual_hidden)),
        residual_input=_fused(constants) if traits.fuses_residual_input else added,
    )


def added(first: Floats, second: Floats) -> Floats:
    """The sum of two arrays (..., width)."""
    return first + second


def side_by_side(first: Floats, second: Floats) -> Floats:
    """Two arrays (..., width) joined along the last axis: (..., 2 · width)."""
    return np.concatenate((first, second), axis=-1)


def _fused(constants: Mapping[str, npt.NDArray[np.floating]]) -> Join:
    fusion = _linear(constants, FUSION)
    return lambda hidden, embedding: fusion(side_by_side(hidden, embedding))


def _linear(constants: Mapping[str, npt.NDArray[np.floating]], stem: str) -> Callable[[Floats], Floats]:
    weight = np.asarray(constants[f"{stem}_w"], np.float32)
    bias = np.asarray(constants[f"{stem}_b"], np.float32)

    def linear(rows: Floats) -> Floats:
        few = rows.size <= FEW_ROWS * weight.shape[1]
        product: Floats = np.einsum("...i,oi->...o", rows, weight) if few else rows @ weight.T
        return product + bias

    return linear
