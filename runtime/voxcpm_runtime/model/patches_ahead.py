"""Patches that are begun before the one before is known, so that a GPU computes while Python hands a patch on."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

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
    begin: Begin, first: Latents, count: int, teacher: Sequence[Latents] | None, *, ahead: bool
) -> Following:
    """All of `count` patches but the first. teacher: what each of them follows, in place of the one before.

    ahead: begin each before the one before it is computed, so that the last one begun may be for nothing.
    """
    last, pending, begun = first, None, None
    try:
        for index in range(count - 1):
            if teacher is not None:
                last = np.asarray(teacher[index], np.float32)
            pending = begin(index, last) if begun is None else begun
            more = ahead and teacher is None and index + 2 < count
            begun = begin(index + 1, before=pending) if more else None
            outputs = pending.result()
            last = np.ascontiguousarray(outputs["patch"][0].T, np.float32)
            yield last, outputs["stop_logits"][0, 0]
    finally:
        if begun is not None:
            begun.cancel()
        # An error's traceback has this frame: with a call that holds the error, both would keep the caches.
        del pending, begun
