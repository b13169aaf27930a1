"""How far upstream's own free runs drift under perturbations of the size of a precision's errors.

A free run feeds its patches back, and its quantiser has thresholds, so two correct implementations may diverge. How far
depends on the checkpoint: some do not diverge at all, others amplify every difference. The floor of a free run is
therefore measured on upstream itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from pydantic import BaseModel

from voxcpm_constants.step_models import Precision
from voxcpm_runtime.backends.step_function import Floats
from voxcpm_validation.end_to_end import Case, SpokenCase, speak_upstream
from voxcpm_validation.measures import agreement

PERTURBATIONS: dict[Precision, float] = {"fp16": 0.005}
"""Relative RMS error that simulates a precision's rounding in free runs: of patches, prompt and quantiser input.

Fixed rather than measured on the bundle, whose defects would then excuse themselves. The median forced patch of the
built-in voice has an error of about 0.0003 in fp16 (TRIALS.md).
"""
FORCED_PERTURBATIONS: dict[Precision, float] = {"fp16": 0.0005}
"""The same for teacher-forced runs, in the prompt and the quantiser input: about fp16's rounding error.

Ten times as much flips a quantiser level in nearly every patch, which would excuse defects of 1 %.
"""
DRAWS = 6
"""Perturbed runs of each kind, as crossing a threshold is random."""
MARGIN = 3.0
"""A bundle may be this many times as far from 1 as perturbed upstream at its worst."""
MIN_FLOOR = 0.9
"""Lower bound of all floors. A text whose perturbed run is lower cannot judge that figure."""


class Sensitivity(BaseModel, extra="forbid", frozen=True):
    """Correlations of perturbed upstream with upstream in one case, the lowest of all draws."""

    case: str
    precision: Precision
    disturbance: float
    free_running: float
    """The correlation of all latents in free runs."""
    forced_worst: float
    """The correlation of the worst patch in teacher-forced runs."""
    forced_median: float
    """The correlation of the median patch in teacher-forced runs."""

    def floor(self, measured: float, fixed: float, *, margin: float = MARGIN) -> float:
        """The floor of a figure, from MIN_FLOOR to `fixed`, its floor without drift. measured: its perturbed value."""
        return min(fixed, max(MIN_FLOOR, 1 - margin * (1 - measured)))


def measure_sensitivity(model: Any, precision: Precision, case: Case, plain: SpokenCase) -> Sensitivity:
    """Speak a case with perturbed upstream, DRAWS times free and DRAWS times forced. plain: the unperturbed speech.

    Patches are compared before they are perturbed, to measure only the drift caused by earlier ones.
    """
    free, worst, median = [], [], []
    for draw in range(DRAWS):
        seed = (case.seed, draw)
        with _perturbed(model, PERTURBATIONS[precision], seed) as solved:
            speak_upstream(model, case)
        shared = min(len(solved), len(plain.latents))
        free.append(agreement(np.stack(solved[:shared]), plain.latents[:shared]).correlation)
        with _perturbed(model, FORCED_PERTURBATIONS[precision], seed, teacher=plain.latents) as solved:
            speak_upstream(model, case)
        forced = [agreement(*pair).correlation for pair in zip(solved, plain.latents, strict=False)]
        worst.append(min(forced))
        median.append(float(np.median(forced)))
    return Sensitivity(
        case=case.name,
        precision=precision,
        disturbance=PERTURBATIONS[precision],
        free_running=min(free),
        forced_worst=min(worst),
        forced_median=min(median),
    )


@contextmanager
def _perturbed(
    model: Any, amount: float, seed: tuple[int, int], teacher: Floats | None = None
) -> Iterator[list[Floats]]:
    """Add a relative error of `amount` to patches, encoded recordings and the quantiser input.

    With `teacher` (patches, patch_size, feat_dim), its patches are fed back without an error instead of the solved
    ones. The list collects each solved patch, (patch_size, feat_dim).
    """
    rng = np.random.default_rng(seed)
    solve, encode, quantise = model.feat_decoder.forward, model.audio_vae.encode, model.fsq_layer.forward
    solved: list[Floats] = []

    def error_of(values: torch.Tensor) -> torch.Tensor:
        noise = torch.from_numpy(rng.standard_normal(tuple(values.shape), np.float32))
        return amount * values.square().mean().sqrt() * noise.to(values.dtype)

    def perturbed_solve(*arguments: Any, **named: Any) -> torch.Tensor:
        patch = solve(*arguments, **named)
        solved.append(patch[0].T.numpy().copy())
        if teacher is None:
            return patch + error_of(patch)
        # The stop head decides where speech ends: without a fixed length there may be more patches than the teacher's.
        forced = teacher[min(len(solved), len(teacher)) - 1]
        return torch.from_numpy(forced.T.copy())[None].to(patch.dtype)

    def perturbed_encode(*arguments: Any, **named: Any) -> torch.Tensor:
        latents = encode(*arguments, **named)
        return latents + error_of(latents)

    def perturbed_quantise(states: torch.Tensor) -> torch.Tensor:
        return quantise(states + error_of(states))

    with (
        mock.patch.object(model.fsq_layer, "forward", perturbed_quantise),
        mock.patch.object(model.feat_decoder, "forward", perturbed_solve),
        mock.patch.object(model.audio_vae, "encode", perturbed_encode),
    ):
        yield solved
