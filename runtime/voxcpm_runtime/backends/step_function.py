"""The interface of a backend: a step model as a function, and the state of a stream of calls."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""A tensor of a step model, float32 or int32."""
Floats = npt.NDArray[np.float32]
"""A float32 array; its shape is documented where it is used."""


class StepState(Protocol):
    """KV caches or convolution contexts of one stream; a call of the step model updates it in place."""

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """Copies of positions `start` to `stop - 1` of every KV cache (1, kv_heads, positions, head_dim), by name."""

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        """Overwrite positions from `start` on with arrays (1, kv_heads, positions, head_dim), by tensor name."""


class StepFunction(Protocol):
    """A step model: (inputs, state) -> outputs, by the names of its declaration (`voxcpm_constants.step_models`)."""

    def new_state(self) -> StepState:
        """The state at the start of a stream: zeros."""

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """Run one step. Raises ValueError for wrong inputs, and for a missing or foreign state."""


def releases_gil(model: StepFunction) -> bool:
    """Whether the step model releases the GIL while it computes: ONNX Runtime does, coremltools' `predict` does not."""
    return getattr(model, "releases_gil", True)


PendingPatch = Future[dict[str, Array]]
"""The outputs of a `NextPatch`, when they are computed."""


class NextPatch(Protocol):
    """All step models from one patch to the next in one call. Optional for a backend."""

    def new_states(self) -> tuple[StepState, StepState]:
        """The states of the base LM and of the residual LM at the start of a stream: zeros.

        The step models accept them, too. `begin` accepts only two that were returned together.
        """

    def begin(
        self,
        inputs: Mapping[str, Array],
        base: StepState,
        residual: StepState,
        before: PendingPatch | None = None,
    ) -> PendingPatch:
        """Begin to predict the next patch; both states are updated in place. Calls are computed in order.

        inputs: `patches` (1, 1, frames, latent_dim), the previous patch; `position` (1,), its position in the caches;
        `noise`, `t_embeddings`, `step_lengths` and `cfg_value` as for `locdit_solve`. before: the pending previous
        patch, instead of `patches`. The outputs are `patch` (1, latent_dim, frames) and `stop_logits` (1, 1, 2), which
        belong to the previous patch, as does `attention`, if the base LM has that output. Raises ValueError for wrong
        inputs, and for states of different `new_states`.
        """
