"""The DiT's condition and the residual LM's input, which are computed between the step models.

| | DiT condition | residual LM input |
|---|---|---|
| voxcpm | lm_to_dit(hidden) + res_to_dit(residual) | hidden + embedding |
| voxcpm2 | both concatenated | fusion(hidden, embedding) |

Source: upstream `model/voxcpm.py` and `model/voxcpm2.py`, `_inference`. `voxcpm_constants.generations` says which
generation does what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from voxcpm_constants.arrays import FUSION, LM_TO_DIT, RESIDUAL_TO_DIT
from voxcpm_constants.generations import Traits
from voxcpm_runtime.backends.step_function import Floats

FEW_ROWS = 4
"""Up to this many rows, numpy multiplies without BLAS, on the calling thread.

BLAS threads spin for 0.1 s after each product, on cores that the step models need: a patch took a fifth longer
(TRIALS.md). For more rows, as in a prefill, BLAS is several times faster.
"""


class Projections:
    """A generation's two projections, with a bundle's constants (`voxcpm_constants.arrays`)."""

    def __init__(self, traits: Traits, constants: Mapping[str, npt.NDArray[np.floating]]) -> None:
        self._lm, self._residual = _linear(constants, LM_TO_DIT), _linear(constants, RESIDUAL_TO_DIT)
        self._adds_condition = traits.mu_tokens == 1
        self._fusion = _linear(constants, FUSION) if traits.fuses_residual_input else None

    def dit_condition(self, hidden: Floats, residual_hidden: Floats) -> Floats:
        """The condition mu (..., mu_size) from hidden states (..., hidden) of both language models."""
        lm, residual = self._lm(hidden), self._residual(residual_hidden)
        return lm + residual if self._adds_condition else np.concatenate((lm, residual), axis=-1)

    def residual_input(self, hidden: Floats, embedding: Floats) -> Floats:
        """The residual LM's input (..., hidden). embedding: of the audio (..., hidden), zero at text positions."""
        if self._fusion is None:
            return hidden + embedding
        return self._fusion(np.concatenate((hidden, embedding), axis=-1))


def _linear(constants: Mapping[str, npt.NDArray[np.floating]], stem: str) -> Callable[[Floats], Floats]:
    weight = np.asarray(constants[f"{stem}_w"], np.float32)
    bias = np.asarray(constants[f"{stem}_b"], np.float32)

    def linear(rows: Floats) -> Floats:
        few = rows.size <= FEW_ROWS * weight.shape[1]
        product: Floats = np.einsum("...i,oi->...o", rows, weight) if few else rows @ weight.T
        return product + bias

    return linear
