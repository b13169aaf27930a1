"""Ending a generation from outside: a token, polled before every call of a step model and so between Euler steps."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from voxcpm_constants.errors import VoxCPMError
from voxcpm_runtime.backends.step_function import Array, StepFunction, StepState


class Cancelled(VoxCPMError):
    """A generation that its `CancelToken` ended."""

    exit_code = 130


class CancelToken:
    """Tells a generation to end; any thread may do so. One token may be given to several calls.

    parents: tokens whose cancellation is this one's too.
    """

    def __init__(self, *parents: CancelToken) -> None:
        self._event = threading.Event()
        self._parents = parents

    def cancel(self) -> None:
        """End at the next step, for good. Calling it again does nothing."""
        self._event.set()

    @property
    def cancelled(self) -> bool:
        return self._event.is_set() or any(parent.cancelled for parent in self._parents)

    def check(self) -> None:
        """Raises Cancelled after `cancel`."""
        if self.cancelled:
            raise Cancelled("the generation was cancelled")


class Polling:
    """A step model that asks a token before every call."""

    def __init__(self, model: StepFunction, token: CancelToken) -> None:
        self._model = model
        self._token = token

    def new_state(self) -> StepState:
        return self._model.new_state()

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        self._token.check()
        return self._model(inputs, state)


def polling(models: Mapping[str, StepFunction], token: CancelToken) -> dict[str, Polling]:
    """Step models by name, each asking the token before every call."""
    return {name: Polling(model, token) for name, model in models.items()}
