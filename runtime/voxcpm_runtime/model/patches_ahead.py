"""Patches that are begun before the one before is known, so that a GPU computes while Python hands a patch on."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from voxcpm_runtime.backends.step_function import Floats, PendingPatch
from voxcpm_runtime.model.sequence import Latents

Following = Generator[tuple[Latents, Floats], None, None]
"""Patches (frames, latent_dim), each with the stop logits (2,) that belong to the patch before it."""


class Begin(Protocol):
    """Draws the noise of the patch that follows the one of an index, and begins it."""

    def __call__(
        self, index: int, last: Latents | None = None, before: PendingPatch | None = None
    ) -> PendingPatch:
        """Begin a patch that follows `last`, or the one that `before` gives (`NextPatch.begin`)."""


def patches_ahead(
    begin: Begin, first: Latents, rng: object, count: int, teacher: Sequence[Latents] | None
) -> Following:
    """All of `count` patches but the first. teacher: what each of them follows, in place of the one before.

    Where numpy's Generator draws the noise, each patch is begun before the one before it is computed. If nobody asks
    for the last that was begun, the Generator is left as if its noise had not been drawn.
    """
    generator = rng if isinstance(rng, np.random.Generator) and teacher is None else None
    last, ahead = first, None
    before: Mapping[str, Any] = {}
    try:
        for index in range(count - 1):
            if teacher is not None:
                last = np.asarray(teacher[index], np.float32)
            pending = begin(index, last) if ahead is None else ahead
            ahead = None
            if generator is not None and index + 2 < count:
                before = generator.bit_generator.state
                ahead = begin(index + 1, before=pending)
            outputs = pending.result()
            last = np.ascontiguousarray(outputs["patch"][0].T, np.float32)
            yield last, outputs["stop_logits"][0, 0]
    finally:
        if generator is not None and ahead is not None:
            ahead.cancel()
            generator.bit_generator.state = before
