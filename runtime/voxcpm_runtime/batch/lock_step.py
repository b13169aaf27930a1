"""Several utterances in lock step: one reading of the weights for all, and the samples of each one alone.

Each utterance runs its ordinary loop, on its own thread and with its own driver. A call of a shared step model waits
until every utterance that is not finished makes one; then equal calls become one call. So all are prefilled first, then
their patches are predicted together, and who is finished leaves.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from voxcpm_constants.step_models import BASE_LM_STEP, FEAT_ENCODER, LOCDIT_STEP, RESIDUAL_LM_STEP
from voxcpm_runtime.backends.step_function import Array, StepFunction, StepState
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.request import CancelToken
from voxcpm_runtime.speech.results import PlannedSegment

Result = TypeVar("Result")

_SHARED = (FEAT_ENCODER, BASE_LM_STEP, RESIDUAL_LM_STEP, LOCDIT_STEP)
"""The shared step models. While utterances wait with different calls, the earliest in this order is made first, so that
all of them meet at the DiT, which they call most."""


def spoken_together(
    driver: Driver, plans: Sequence[Plan], count: int, speak: Callable[[Plan, Driver], Result]
) -> Iterator[tuple[int, Result]]:
    """Yield the index of each plan and what `speak` returns for it, in groups of up to `count` of similar length.

    Plans with a source of noise are spoken alone, in their order, as they may share it.
    """
    order = sorted(range(len(plans)), key=lambda index: len(plans[index].text or ""))
    mixed = [index for index in order if plans[index].request.rng is None]
    groups = [mixed[start : start + count] for start in range(0, len(mixed), count)]
    for group in (*groups, *([index] for index in range(len(plans)) if index not in mixed)):
        stop = CancelToken()
        stopped = (replace(plans[i], cancel=CancelToken(plans[i].cancel, stop)) for i in group)
        yield from zip(group, in_lock_step(driver, [partial(speak, p) for p in stopped], stop), strict=True)


def grouped(
    segments: Iterable[PlannedSegment | None], count: int
) -> Iterator[list[tuple[int, PlannedSegment]]]:
    """Yield the segments with their indices in groups of up to `count`; those that become the voice are alone."""
    group: list[tuple[int, PlannedSegment]] = []
    for item in enumerate(segment for segment in segments if segment is not None):
        if group and (item[1].anchors or len(group) == count):
            yield group
            group = []
        group.append(item)
        if item[1].anchors:  # The next segment may be read only after this one is spoken
            yield group
            group = []
    yield group


def in_lock_step(
    driver: Driver, speak: Sequence[Callable[[Driver], Result]], stop: CancelToken
) -> Iterator[Result]:
    """Call each function with its own driver, all at the same time, and yield what they return, in order.

    stop: cancelled if one of the functions fails, or if the reader ends.
    """
    if len(speak) == 1:
        yield speak[0](driver)
        return
    shared = _SharedCalls(driver, len(speak))

    def run(place: int) -> Result:
        try:
            return speak[place](shared.driver(place))
        finally:
            shared.leave(place)

    with ThreadPoolExecutor(len(speak), "utterance") as threads:
        started = [threads.submit(copy_context().run, run, place) for place in range(len(speak))]
        try:
            for future in started:
                yield future.result()
        except BaseException:
            stop.cancel()
            raise


@dataclass
class _State:
    """The state of an utterance's language model: its own, which is prefilled, or its place in that of all."""

    own: StepState
    is_own: bool = True

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """See `StepState`; only before the first patch, as `set_rows`."""
        return self.own.rows(start, stop)

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        """See `StepState`."""
        self.own.set_rows(start, rows)


@dataclass
class _SharedStep:
    """A step model as one utterance calls it. make: makes the call."""

    one: StepFunction
    make: Callable[[_Call], dict[str, Array]]
    name: str
    releases_gil: bool

    def new_state(self) -> _State:
        """See `StepFunction`."""
        return _State(self.one.new_state())

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """See `StepFunction`."""
        if state is not None and not isinstance(state, _State):
            raise ValueError(f"{self.name}: pass a state of this utterance")
        return self.make(_Call(self.name, inputs, state))


@dataclass
class _Call:
    """An utterance's call of a step model, which waits for those of the others."""

    name: str
    inputs: Mapping[str, Array]
    state: _State | None
    outputs: dict[str, Array] = field(default_factory=dict)
    error: Exception | None = None

    @property
    def turn(self) -> tuple[bool, int]:
        """Whether the call has the shortest length, so that several can be made together; its place in `_SHARED`."""
        short = self.name == LOCDIT_STEP or next(iter(self.inputs.values())).shape[1] == 1
        return short, _SHARED.index(self.name)

    @property
    def position(self) -> int:
        """The cache position of the embedding."""
        return int(self.inputs["position"][0])


class _SharedCalls:
    """The calls of utterances in lock step. Each has a place: its index in the state of all."""

    def __init__(self, driver: Driver, count: int) -> None:
        self._driver, self._all, self._size = driver, driver.together(), driver.sizes.together
        self._states = {name: self._all[name].new_state() for name in (BASE_LM_STEP, RESIDUAL_LM_STEP)}
        # The next cache position of each place. A call of others writes there, which is overwritten.
        self._next = {name: np.zeros(self._size, np.int32) for name in self._states}
        self._live, self._waiting = set(range(count)), dict[int, _Call]()
        self._changed = threading.Condition()

    def driver(self, place: int) -> Driver:
        """The driver of one utterance."""
        own, make = copy.copy(self._driver), partial(self._make, place)
        one = {name: own.models[name] for name in _SHARED}
        shared = {name: _SharedStep(model, make, name, model.releases_gil) for name, model in one.items()}
        own.models = {**own.models, **shared}
        return own

    def leave(self, place: int) -> None:
        """An utterance is finished, so the others go on without it."""
        with self._changed:
            self._live.discard(place)
            self._advance()

    def _make(self, place: int, call: _Call) -> dict[str, Array]:
        """The outputs of a call, as soon as all utterances wait for theirs. Raises what the step model raises."""
        with self._changed:
            self._waiting[place] = call
            self._advance()
            self._changed.wait_for(lambda: place not in self._waiting)
        try:
            if call.error is not None:
                raise call.error
            return call.outputs
        finally:
            # An error's traceback refers to this frame, which must not refer to the caches.
            del call

    def _advance(self) -> None:
        """If all wait, make the calls of those that are furthest behind: the prefill, then by `_SHARED`."""
        if not self._waiting or len(self._waiting) < len(self._live):
            return
        turn = min(call.turn for call in self._waiting.values())
        made = {place: call for place, call in self._waiting.items() if call.turn == turn}
        # An utterance whose caches are among those of the others stays there until it is the last one.
        stays = len(self._live) > 1 and any(call.state and not call.state.is_own for call in made.values())
        # For half of the places the DiT is faster one by one: more of its time is arithmetic (docs/trials-archive.md).
        few = turn[1] == _SHARED.index(LOCDIT_STEP) and 2 * len(made) <= self._size
        try:
            if turn[0] and not few and (len(made) > 1 or stays):
                self._make_together(_SHARED[turn[1]], made)
            else:
                for item in made.items():
                    self._make_alone(*item)
        except Exception as error:  # noqa: BLE001 - raised again by the threads that made the calls
            for call in made.values():
                call.error = error
        for place in made:
            del self._waiting[place]
        self._changed.notify_all()

    def _make_alone(self, place: int, call: _Call) -> None:
        if call.state and not call.state.is_own:
            rows = self._states[call.name].rows(0, call.position)
            call.state.own.set_rows(0, {name: array[place : place + 1] for name, array in rows.items()})
            call.state.is_own = True
        call.outputs = self._driver.models[call.name](call.inputs, call.state and call.state.own)

    def _make_together(self, name: str, calls: Mapping[int, _Call]) -> None:
        inputs: dict[str, Array] = {}
        for place, call in calls.items():
            for key, array in call.inputs.items():
                inputs.setdefault(key, np.zeros((self._size, *array.shape), array.dtype))[place] = array
            if call.state:
                self._join(place, call, call.state)
                self._next[name][place] = min(call.position + 1, self._driver.sizes.kv_length - 1)
        if state := self._states.get(name):
            others = [place for place in range(self._size) if place not in calls]
            inputs["position"][others, 0] = self._next[name][others]
        outputs = self._all[name](
            {k: array.reshape(-1, *array.shape[2:]) for k, array in inputs.items()}, state
        )
        for place, call in calls.items():
            call.outputs = {key: np.split(array, self._size)[place] for key, array in outputs.items()}

    def _join(self, place: int, call: _Call, state: _State) -> None:
        """Move an utterance's caches to its place, unless they are there."""
        if state.is_own:
            rows = self._states[call.name].rows(0, call.position)
            for name, own in state.own.rows(0, call.position).items():
                rows[name][place] = own[0]
            self._states[call.name].set_rows(0, rows)
            state.is_own = False
