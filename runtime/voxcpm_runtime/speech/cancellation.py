"""Ending a generation from outside: a token, polled before every call of a step model.

So it ends between two Euler steps, or between patches where one call takes all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from voxcpm_constants.errors import VoxCPMError
from voxcpm_runtime.argument_types import instance
from voxcpm_runtime.backends.step_function import Array, NextPatch, PendingPatch, StepFunction, StepState


class Cancelled(VoxCPMError):
    """The error of a generation that its `CancelToken` ended."""

    exit_code = 130


class CancelToken:
    """Ends a generation from any thread. One token may be given to several calls.

    parents: tokens whose cancellation also cancels this one.
    """

    def __init__(self, *parents: CancelToken) -> None:
        self._event = threading.Event()
        self._parents = tuple(instance(token, CancelToken, "a parent", "a CancelToken") for token in parents)

    def cancel(self) -> None:
        """End the generation at its next step. This cannot be undone; calling it again does nothing."""
        self._event.set()

    @property
    def cancelled(self) -> bool:
        """Whether this token or one of its parents was cancelled."""
        return self._event.is_set() or any(parent.cancelled for parent in self._parents)

    def check(self) -> None:
        """Raises Cancelled after `cancel`."""
        if self.cancelled:
            raise Cancelled("the generation was cancelled")


class Polling:
    """A step model that checks a token before every call."""

    def __init__(self, model: StepFunction, token: CancelToken) -> None:
        self._model = model
        self._token = token

    def new_state(self) -> StepState:
        """The state at the start of a stream: zeros."""
        return self._model.new_state()

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """Run one step. Raises Cancelled after the token's `cancel`, and what the step model raises."""
        self._token.check()
        return self._model(inputs, state)


def polling(models: Mapping[str, StepFunction], token: CancelToken) -> dict[str, Polling]:
    """The step models by name, each of which checks the token before every call."""
    return {name: Polling(model, token) for name, model in models.items()}


class PollingPatch:
    """A `NextPatch` that checks a token before every call."""

    def __init__(self, call: NextPatch, token: CancelToken) -> None:
        self._call = call
        self._token = token

    def new_states(self) -> tuple[StepState, StepState]:
        """The states of both language models at the start of a stream."""
        return self._call.new_states()

    def begin(
        self,
        inputs: Mapping[str, Array],
        base: StepState,
        residual: StepState,
        before: PendingPatch | None = None,
    ) -> PendingPatch:
        """Begin to predict the next patch. Raises Cancelled after the token's `cancel`, and what `begin` raises."""
        self._token.check()
        return self._call.begin(inputs, base, residual, before)


def polling_patch(call: NextPatch | None, token: CancelToken) -> PollingPatch | None:
    """The call for a whole patch, which checks the token first; None if there is none."""
    return None if call is None else PollingPatch(call, token)
