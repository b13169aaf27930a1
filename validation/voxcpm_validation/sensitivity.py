"""How far upstream's own free runs drift when it is disturbed as much as a precision may disturb it.

A free run feeds its patches back, and its quantiser has thresholds. So two correct implementations can part, and how
far depends on the checkpoint: some do not part at all, others amplify every difference. What a precision may lose in a
free run is therefore measured on upstream itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from voxcpm_constants.step_models import Precision
from voxcpm_runtime.backends.step_function import Floats
from voxcpm_validation.end_to_end import Case, Spoken, speak_upstream
from voxcpm_validation.measures import agreement

DISTURBANCES: dict[Precision, float] = {"fp16": 0.005}
"""Error, RMS over RMS, that stands for the rounding of a precision, in patches and in what the quantiser gets.

It is fixed rather than taken from the bundle, whose defects would then excuse themselves. The median forced patch of
the built-in voice has an error of about 0.0003 in fp16 (TRIALS.md).
"""
DRAWS = 6
"""Disturbed runs of each case: whether a threshold is crossed is a matter of chance."""
MARGIN = 3.0
"""A bundle may be this many times as far from 1 as disturbed upstream at its farthest."""


class Sensitivity(BaseModel):
    """Agreement of upstream, disturbed, with upstream in free runs: the lowest over all cases and draws."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    precision: Precision
    disturbance: float
    free_running: float
    """Correlation of all latents of a case."""
    worst_patch: float
    """Correlation of one patch."""

    def floor(self, measured: float, fixed: float) -> float:
        """The floor of a figure whose disturbed value is `measured`: never above `fixed`, which holds without drift."""
        return min(fixed, 1 - MARGIN * (1 - measured))


def measure_sensitivity(
    model: Any, precision: Precision, cases: Sequence[Case], spoken: Sequence[Spoken]
) -> Sensitivity:
    """Speak each case with upstream's model DRAWS times more, disturbed as DISTURBANCES says. spoken: it without that.

    A patch is compared without its own disturbance, so that what is measured is the drift after earlier ones.
    """
    free, worst = [], []
    for (case, plain), draw in product(zip(cases, spoken, strict=True), range(DRAWS)):
        with _disturbed(model, DISTURBANCES[precision], (case.seed, draw)) as added:
            latents = speak_upstream(model, case).latents
        latents = latents - np.stack(added[: len(latents)])
        shared = min(len(latents), len(plain.latents))
        free.append(agreement(latents[:shared], plain.latents[:shared]).correlation)
        worst += [agreement(*pair).correlation for pair in zip(latents, plain.latents, strict=False)]
    return Sensitivity(
        precision=precision,
        disturbance=DISTURBANCES[precision],
        free_running=min(free),
        worst_patch=min(worst),
    )


@contextmanager
def _disturbed(model: Any, amount: float, seed: tuple[int, int]) -> Iterator[list[Floats]]:
    """A context in which patches, encoded recordings and the quantiser's input have an error of `amount`.

    The list gets what is added to each patch, (patch_size, feat_dim).
    """
    rng = np.random.default_rng(seed)
    solve, encode, quantise = model.feat_decoder.forward, model.audio_vae.encode, model.fsq_layer.forward
    added: list[Floats] = []

    def error_of(values: torch.Tensor) -> torch.Tensor:
        noise = torch.from_numpy(rng.standard_normal(tuple(values.shape), np.float32))
        return amount * values.square().mean().sqrt() * noise.to(values.dtype)

    def disturbed_solve(*arguments: Any, **named: Any) -> torch.Tensor:
        patch = solve(*arguments, **named)
        error = error_of(patch)
        added.append(error[0].T.numpy())
        return patch + error

    def disturbed_encode(*arguments: Any, **named: Any) -> torch.Tensor:
        latents = encode(*arguments, **named)
        return latents + error_of(latents)

    def disturbed_quantise(states: torch.Tensor) -> torch.Tensor:
        return quantise(states + error_of(states))

    with (
        mock.patch.object(model.fsq_layer, "forward", disturbed_quantise),
        mock.patch.object(model.feat_decoder, "forward", disturbed_solve),
        mock.patch.object(model.audio_vae, "encode", disturbed_encode),
    ):
        yield added
