"""The noise of every attempt at every segment, from one seed or one source of the caller's."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

from voxcpm_constants.errors import InputError
from voxcpm_runtime.model.driver import NoiseSource
from voxcpm_runtime.options import whole_number

SEED_BITS = 32
"""Length of a seed that is drawn."""


@dataclass(frozen=True)
class Randomness:
    """Where a call's noise comes from; make one with `randomness`."""

    seed: int | None
    """The seed of the first attempt at the first segment; None where the caller brings the noise."""
    rng: NoiseSource | None = None
    """The caller's source, for all attempts and segments."""

    def seed_of(self, segment: int, attempt: int) -> int | None:
        """The seed of an attempt, counted from 0, at a segment, counted from 0; None with a source of the caller's.

        A retry adds 1; a later segment has a seed of its own that follows from the first.
        """
        if self.seed is None:
            return None
        if segment == 0:
            return self.seed + attempt
        return int(np.random.SeedSequence([self.seed, segment]).generate_state(1)[0]) + attempt

    def noise(self, segment: int, attempt: int) -> NoiseSource:
        """The source of noise of that attempt."""
        return self.rng if self.rng is not None else np.random.default_rng(self.seed_of(segment, attempt))


def randomness(seed: object, rng: NoiseSource | None) -> Randomness:
    """A call's randomness; without a seed a fresh one is drawn, so that every speech can be made again.

    Raises InputError for a seed that is no whole number from 0, and for a seed beside an rng.
    """
    if rng is None:
        return Randomness(secrets.randbits(SEED_BITS) if seed is None else whole_number(seed, "seed", 0))
    if seed is not None:
        raise InputError("give a seed or an rng, not both")
    return Randomness(None, rng)
