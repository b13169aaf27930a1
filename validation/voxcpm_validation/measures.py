"""Measures of agreement between two arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

Array = npt.NDArray[np.floating]


class Agreement(BaseModel, extra="forbid", frozen=True):
    """Agreement of values with a reference, over all elements, computed in float64."""

    correlation: float
    """Pearson's r. 1 for two equal constants; 0 if a value is not finite or only one array is constant."""
    max_abs_error: float
    snr_db: float
    """Power of the reference over power of the difference, in dB; infinite for equal arrays."""
    finite: bool


def agreement(values: Array, reference: Array) -> Agreement:
    """Compare values with a reference. Raises ValueError if their shapes differ."""
    if values.shape != reference.shape:
        raise ValueError(f"expected shape {reference.shape}, got {values.shape}")
    got, want = values.astype(np.float64).ravel(), reference.astype(np.float64).ravel()
    if not np.isfinite(got).all():
        return Agreement(correlation=0.0, max_abs_error=float("inf"), snr_db=float("-inf"), finite=False)
    error = got - want
    noise, signal = float(error @ error), float(want @ want)
    return Agreement(
        correlation=_correlation(got, want),
        max_abs_error=float(np.max(np.abs(error), initial=0.0)),
        snr_db=float("inf") if noise == 0 else 10 * float(np.log10(max(signal, 1e-300) / noise)),
        finite=True,
    )


def _correlation(got: Array, want: Array) -> float:
    a, b = got - got.mean(), want - want.mean()
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    if norms == 0:
        return float(np.array_equal(got, want))
    # For equal arrays, rounding may make the quotient slightly larger than 1.
    return min(1.0, float(a @ b) / norms)
