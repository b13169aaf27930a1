"""The noise of every attempt at every segment, from one seed or from the caller's own source."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

from voxcpm_constants.errors import InputError
from voxcpm_runtime.argument_types import whole_number, wrong_type
from voxcpm_runtime.model.driver import NoiseSource

SEED_BITS = 32
"""Length of a fresh seed."""


@dataclass(frozen=True)
class Randomness:
    """The source of a call's noise; make one with `randomness`."""

    seed: int | None
    """The seed of the first attempt at the first segment; None if the caller gives a source of noise."""
    rng: NoiseSource | None = None
    """The caller's source, for all attempts and segments."""

    def seed_of(self, segment: int, attempt: int) -> int | None:
        """The seed of an attempt at a segment, both counted from 0; None if the caller gives a source of noise.

        A retry adds 1; the seed of a later segment is computed from the first.
        """
        if self.seed is None:
            return None
        if segment == 0:
            return self.seed + attempt
        return int(np.random.SeedSequence([self.seed, segment]).generate_state(1)[0]) + attempt

    def noise(self, segment: int, attempt: int) -> NoiseSource:
        """The source of noise for an attempt at a segment, both counted from 0."""
        return self.rng if self.rng is not None else np.random.default_rng(self.seed_of(segment, attempt))


def randomness(seed: object, rng: NoiseSource | None) -> Randomness:
    """A call's randomness; without a seed a fresh one is drawn, so that every speech can be reproduced.

    Raises InputError for a seed that is no whole number of at least 0, for an rng that is no source of noise, and for
    both together.
    """
    if rng is None:
        return Randomness(secrets.randbits(SEED_BITS) if seed is None else whole_number(seed, "seed", 0))
    if seed is not None:
        raise InputError("give a seed or an rng, not both")
    if not callable(getattr(rng, "standard_normal", None)):
        raise wrong_type(rng, "rng", "a source of noise with the method standard_normal")
    return Randomness(None, rng)
