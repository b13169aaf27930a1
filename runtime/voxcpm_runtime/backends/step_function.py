"""The interface of a backend: a step model as a function, and the state of a stream of calls."""

from __future__ import annotations

from collections.abc import Mapping
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
        """Copies of positions `start` to `stop - 1` of KV caches (layers, kv_heads, positions, head_dim), by name."""

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        """Overwrite positions from `start` on with arrays (layers, kv_heads, positions, head_dim), by name."""


class StepFunction(Protocol):
    """A step model: (inputs, state) -> outputs, by the names of its declaration (`voxcpm_constants.step_models`)."""

    releases_gil: bool  # Whether another thread runs while it computes

    def new_state(self) -> StepState:
        """The state at the start of a stream: zeros."""

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """Run one step. Raises ValueError for wrong inputs, and for a missing or foreign state."""
