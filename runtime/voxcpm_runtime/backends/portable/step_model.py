"""Running an .mlpackage on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from voxcpm_constants.targets import MAIN
from voxcpm_runtime.backends.fair_lock import FairLock
from voxcpm_runtime.backends.machine import cores
from voxcpm_runtime.backends.portable.cache import load_lowered
from voxcpm_runtime.backends.portable.lowered import PROBE_OUTPUT, Lowered, Mode, checked_inputs
from voxcpm_runtime.backends.portable.onnx_runtime import ort
from voxcpm_runtime.backends.portable.sessions import (
    open_on_processor,
    refusal_named,
)
from voxcpm_runtime.backends.portable.state import State, form
from voxcpm_runtime.backends.step_function import StepState

# Calls that compute on the processor at the same time, of all step models: each has tensors of its own, so that memory
# would grow with the number of threads that speak. One more than cores: a core would wait while a place changes hands.
COMPUTING = FairLock(cores() + 1)


class PortableStepModel:
    """A step model, or one function of it: `(inputs, state) -> outputs`, the state changed in place.

    `state` maps each state input to the output that holds its next value; both are hidden from callers. A Core ML state
    `name` is an input `name` and an output `name_out` here. With `returns_rows` these outputs hold only the new rows of
    KV caches, which are written into the caches at the input "position". Functions of one package may share a state.
    `mode` is "plain" (float32 arithmetic), "faithful" (every fp16 result rounded to fp16) or "half" (fp16 arithmetic,
    for a GPU). With `probe`, the output "probe.max_abs" has the largest |value| of every fp16 operation. `threads`:
    threads of one operation.

    Several threads may call one model, each with its own state. A call waits while as many calls of step models as
    there are cores, and one, compute in this process.

    Raises PackageError for a package that cannot be run, ValueError for a `state` tensor that the model lacks.
    """

    scatters_in_place = True
    """Whether a scatter's input may be its output."""

    def __init__(
        self,
        package: Path,
        *,
        cache_key: str | None = None,
        function: str = MAIN,
        mode: Mode = "plain",
        probe: bool = False,
        threads: int | None = None,
        state: Mapping[str, str] | None = None,
        returns_rows: bool = False,
    ) -> None:
        self._lowered = load_lowered(package, cache_key=cache_key, function=function, mode=mode, probe=probe)
        self._mode = mode
        self._state = dict(state or {})
        self._package = package
        self._name = package.name
        self.inputs = {i.name: i for i in self._lowered.inputs if i.name not in self._state}
        self._state_inputs = {i.name: i for i in self._lowered.inputs if i.name in self._state}
        self._state_forms = {name: form(i, mode) for name, i in self._state_inputs.items()}
        hidden = set(self._state.values())
        self.outputs = {o.name: o for o in self._lowered.outputs if o.name not in hidden}
        self._require_state(hidden)
        scattered = self._lowered.scattered
        self._returns_rows = returns_rows
        self._in_place = frozenset(
            i
            for i, o in self._state.items()
            if returns_rows or (self.scatters_in_place and scattered.get(i) == o)
        )
        self._visible = [*self.outputs, *([PROBE_OUTPUT] if self._lowered.probed else [])]
        self._open(threads, None if cache_key is None else f"{cache_key}|{function}")

    def _open(self, threads: int | None, prepared_key: str | None) -> None:
        with refusal_named(self._package):
            self._session, self._weights = open_on_processor(
                self._package, self._lowered, self._mode, threads, prepared_key=prepared_key
            )

    @property
    def probed(self) -> tuple[str, ...]:
        """The operations behind the entries of the output "probe.max_abs", in order; empty without `probe`."""
        return self._lowered.probed

    @property
    def lowered(self) -> Lowered:
        """The graph and its interface."""
        return self._lowered

    def new_state(self) -> StepState:
        """The state at the start of a stream: zeros."""
        outputs = {} if self._returns_rows else self._state
        return State(self._state_inputs, self._state_forms, outputs, self._in_place, self._mode)

    def __call__(
        self, inputs: Mapping[str, np.ndarray], state: StepState | None = None
    ) -> dict[str, np.ndarray]:
        """Run one step, update the state and return the outputs by name, float32 or int32.

        Raises ValueError for a missing or unknown input, another dtype, a shape the model does not take, or a
        missing state.
        """
        feeds = checked_inputs(self._name, self.inputs, inputs, self._mode)
        if (state is None) != (not self._state):
            raise ValueError(f"{self._name} {'has a state: pass one' if self._state else 'has no state'}")
        return self._computed(feeds, state)

    def _computed(self, feeds: Mapping[str, np.ndarray], state: StepState | None) -> dict[str, np.ndarray]:
        if state is None:
            with COMPUTING.held(), refusal_named(self._package):
                return dict(zip(self._visible, self._session.run(self._visible, feeds), strict=True))
        if not isinstance(state, State) or state.in_place != self._in_place:
            raise ValueError(f"{self._name}: the state is not of this step model")
        with COMPUTING.held(), refusal_named(self._package):
            return self._advanced(feeds, state)

    def _advanced(self, feeds: Mapping[str, np.ndarray], state: State) -> dict[str, np.ndarray]:
        binding = state.binding(self._session)
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        names = [*(self._state.values() if self._returns_rows else ()), *self._visible]
        for name in names:
            binding.bind_output(name)  # anew each time: a bound output would keep the first call's shape
        self._session.run_with_iobinding(binding)
        # The state bound its outputs first, then came these in order.
        values = binding.get_outputs()[-len(names) :]
        results = {name: value.numpy() for name, value in zip(names, values, strict=True)}
        if self._returns_rows:
            state.append({i: results.pop(o) for i, o in self._state.items()}, feeds["position"])
        state.advance()
        return results

    def _require_state(self, outputs: set[str]) -> None:
        missing = (set(self._state) - set(self._state_inputs)) | (
            outputs - {o.name for o in self._lowered.outputs}
        )
        if missing:
            raise ValueError(f"{self._name} has no state tensor {', '.join(sorted(missing))}")
