"""The noise of an attempt, which follows from the seed of the speech alone."""

from __future__ import annotations

import secrets

import numpy as np

from voxcpm_constants.errors import InputError
from voxcpm_runtime.argument_types import whole_number, wrong_type
from voxcpm_runtime.model.flow_matching import NoiseSource

_SEED_BITS = 32  # Length of a random seed


def first_seed(seed: object, rng: NoiseSource | None = None) -> int | None:
    """The seed of a call, by default a random one, so that all speech can be reproduced; None with an rng.

    Raises InputError for a seed that is not a whole number of at least 0, for an rng without `standard_normal`, and
    for both together.
    """
    if rng is None:
        return secrets.randbits(_SEED_BITS) if seed is None else whole_number(seed, "seed", 0)
    if seed is not None:
        raise InputError("give a seed or an rng, not both")
    if not callable(getattr(rng, "standard_normal", None)):
        raise wrong_type(rng, "rng", "a source of noise with the method standard_normal")
    return None


def seed_of(seed: int | None, segment: int, attempt: int) -> int | None:
    """The seed of an attempt at a segment, both counted from 0; None without the first seed.

    A retry adds 1; seeds of later segments are derived from the first.
    """
    if seed is None or segment == 0:
        return None if seed is None else seed + attempt
    return int(np.random.SeedSequence([seed, segment]).generate_state(1)[0]) + attempt


def noise(seed: int | None, segment: int, attempt: int, repair: int = 0) -> NoiseSource:
    """The source of noise for an attempt at a segment, and for a repair of it, all counted from 0."""
    own = seed_of(seed, segment, attempt)
    return np.random.default_rng([own, segment, repair] if own is not None and repair else own)
