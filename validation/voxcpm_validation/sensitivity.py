"""How far upstream's own free runs drift when it is disturbed as much as a precision may disturb it.

A free run feeds its patches back, and its quantiser has thresholds. So two correct implementations can part, and how
far depends on the checkpoint: some do not part at all, others amplify every difference. What a precision may lose in a
free run is therefore measured on upstream itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
"""Error, RMS over RMS, that stands for a precision's rounding in free runs: of patches, prompt and quantiser's input.

It is fixed rather than taken from the bundle, whose defects would then excuse themselves. The median forced patch of
the built-in voice has an error of about 0.0003 in fp16 (TRIALS.md).
"""
FORCED_DISTURBANCES: dict[Precision, float] = {"fp16": 0.0005}
"""The same in teacher-forced runs, in the prompt and the quantiser's input: about what fp16 rounds.

Ten times as much rounds some level differently in nearly every patch, which would excuse defects of 1 %.
"""
DRAWS = 6
"""Disturbed runs of each kind: whether a threshold is crossed is a matter of chance."""
MARGIN = 3.0
"""A bundle may be this many times as far from 1 as disturbed upstream at its farthest."""
BOTTOM = 0.9
"""No floor is lower, and a text whose disturbed run is lower cannot judge that figure."""


class Sensitivity(BaseModel):
    """Agreement of upstream, disturbed, with upstream in one case: correlations, the lowest of all draws."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    case: str
    precision: Precision
    disturbance: float
    free_running: float
    """The correlation of all latents in free runs."""
    forced_worst: float
    """The correlation of the worst patch in teacher-forced runs."""
    forced_median: float
    """The correlation of the median patch in teacher-forced runs."""

    def judges(self, measured: float) -> bool:
        """Whether a figure whose disturbed value is `measured` says anything about a bundle with this text."""
        return measured >= BOTTOM

    def floor(self, measured: float, fixed: float, *, margin: float = MARGIN) -> float:
        """The floor of a figure, from BOTTOM to `fixed`, which holds without drift. measured: the disturbed value."""
        return min(fixed, max(BOTTOM, 1 - margin * (1 - measured)))


def measure_sensitivity(model: Any, precision: Precision, case: Case, plain: Spoken) -> Sensitivity:
    """Speak a case with upstream's model, disturbed, DRAWS times free and DRAWS times forced. plain: it without that.

    A patch is compared without its own disturbance, so that what is measured is the drift after earlier ones.
    """
    free, worst, median = [], [], []
    for draw in range(DRAWS):
        seed = (case.seed, draw)
        with _disturbed(model, DISTURBANCES[precision], seed) as solved:
            speak_upstream(model, case)
        shared = min(len(solved), len(plain.latents))
        free.append(agreement(np.stack(solved[:shared]), plain.latents[:shared]).correlation)
        with _disturbed(model, FORCED_DISTURBANCES[precision], seed, teacher=plain.latents) as solved:
            speak_upstream(model, case)
        forced = [agreement(*pair).correlation for pair in zip(solved, plain.latents, strict=False)]
        worst.append(min(forced))
        median.append(float(np.median(forced)))
    return Sensitivity(
        case=case.name,
        precision=precision,
        disturbance=DISTURBANCES[precision],
        free_running=min(free),
        forced_worst=min(worst),
        forced_median=min(median),
    )


@contextmanager
def _disturbed(
    model: Any, amount: float, seed: tuple[int, int], teacher: Floats | None = None
) -> Iterator[list[Floats]]:
    """A context in which patches, encoded recordings and the quantiser's input have an error of `amount`.

    With `teacher` (patches, patch_size, feat_dim), its patches are fed back without an error in place of the solved
    ones. The list gets each patch as it was solved, (patch_size, feat_dim).
    """
    rng = np.random.default_rng(seed)
    solve, encode, quantise = model.feat_decoder.forward, model.audio_vae.encode, model.fsq_layer.forward
    solved: list[Floats] = []

    def error_of(values: torch.Tensor) -> torch.Tensor:
        noise = torch.from_numpy(rng.standard_normal(tuple(values.shape), np.float32))
        return amount * values.square().mean().sqrt() * noise.to(values.dtype)

    def disturbed_solve(*arguments: Any, **named: Any) -> torch.Tensor:
        patch = solve(*arguments, **named)
        solved.append(patch[0].T.numpy().copy())
        if teacher is None:
            return patch + error_of(patch)
        # Where speech ends is the stop head's decision: without a fixed length there may be more patches than fed.
        given = teacher[min(len(solved), len(teacher)) - 1]
        return torch.from_numpy(given.T.copy())[None].to(patch.dtype)

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
        yield solved
