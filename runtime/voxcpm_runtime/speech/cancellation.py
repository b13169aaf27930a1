"""Ending a generation from outside: a token, polled before every call of a step model.

So it ends between two Euler steps, or between patches where one call takes all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from voxcpm_constants.errors import VoxCPMError
from voxcpm_runtime.argument_types import instance
from voxcpm_runtime.backends.step_function import Array, NextPatch, PendingPatch, StepFunction, StepState

if TYPE_CHECKING:
    from voxcpm_runtime.model.driver import Driver


class Cancelled(VoxCPMError):
    """The error of a generation that its `CancelToken` ended."""

    exit_code = 130


class CancelToken:
    """Ends a generation from any thread. One token may be given to several calls.

    parents: tokens whose cancellation also cancels this one.
    """

    def __init__(self, *parents: CancelToken) -> None:
        self._event = threading.Event()
        self._parents = parents
        for parent in parents:
            instance(parent, CancelToken, "a parent", "a CancelToken")

    def cancel(self) -> None:
        """End the generation at its next step. This cannot be undone; calling it again does nothing."""
        self._event.set()

    @property
    def cancelled(self) -> bool:
        """Whether this token or one of its parents was cancelled."""
        for parent in self._parents:
            if parent.cancelled:
                return True
        return self._event.is_set()

    def check(self) -> None:
        """Raises Cancelled after `cancel`."""
        if self.cancelled:
            raise Cancelled("the generation was cancelled")


class Polling:
    """A step model that checks a token before every call."""

    def __init__(self, model: StepFunction, token: CancelToken) -> None:
        self._model = model
        self._token = token
        self.new_state = model.new_state

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """Run one step. Raises Cancelled after the token's `cancel`, and what the step model raises."""
        self._token.check()
        return self._model(inputs, state)


class PollingPatch:
    """A `NextPatch` that checks a token before every call."""

    def __init__(self, call: NextPatch, token: CancelToken) -> None:
        self._call = call
        self._token = token
        self.new_states = call.new_states

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


def polling(driver: Driver, token: CancelToken) -> Driver:
    """The driver with step models that check the token before every call."""
    models: dict[str, StepFunction] = {}
    for name, model in driver.models.items():
        models[name] = Polling(model, token)
    next_patch = driver.next_patch
    return driver.over(models, None if next_patch is None else PollingPatch(next_patch, token))
