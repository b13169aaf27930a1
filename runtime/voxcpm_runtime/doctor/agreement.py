"""The agreement of results with test vectors, and the least that counts as correct."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from voxcpm_constants.step_models import Precision

Array = npt.NDArray[Any]

FLOORS: dict[Precision, float] = {"fp32": 0.9999, "fp16": 0.995, "int8": 0.99, "int4": 0.85}
"""The lowest correlation with the test vectors, which are float32: at least three times as far from 1 as the worst that
was measured on the portable backend, plain and with every result rounded to fp16 (TRIALS.md). The worst is the base LM,
whose quantiser rounds to another level now and then, and in int4 its weights."""


class Agreement(BaseModel):
    """Correlations of a step model's results with its test vectors, each the worst over the tensors that it covers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    streams: dict[str, float]
    """Outputs of each stream of `voxcpm_constants.vectors`: `chain`, and every length at either end of the cache."""
    chain: tuple[float, ...]
    """Outputs of each call of `chain` in turn: the drift."""
    state: float | None
    """State that the streams leave; None for a step model without state."""

    @property
    def worst(self) -> float:
        """The lowest of all."""
        return min((*self.streams.values(), *([] if self.state is None else [self.state])))

    def correct(self, precision: Precision) -> bool:
        """Whether no correlation is below the precision's floor."""
        return self.worst >= FLOORS[precision]


def correlation(values: Array, reference: Array) -> float:
    """1 - |v - r|² / (|v|² + |r|²), which is 2⟨v, r⟩ / (|v|² + |r|²), over all elements in float64.

    It is the cosine of the angle between both, and lower if one is larger than the other: unlike Pearson's correlation
    it sees a wrong scale or offset. 1 for two zeros, and 0 if a value is not finite or the shapes differ.
    """
    v, r = (np.asarray(array, np.float64).ravel() for array in (values, reference))
    if values.shape != reference.shape or not np.isfinite(v).all():
        return 0.0
    power = float(v @ v + r @ r)
    return 2 * float(v @ r) / power if power else 1.0


def lowest_correlation(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The lowest correlation of the tensors of `expected` with those of the same name."""
    return min(correlation(found[name], array) for name, array in expected.items())
