"""Runs an .mlpackage on ONNX Runtime, which writes directly to the buffers of a stream's state."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from voxcpm_constants.targets import MAIN
from voxcpm_runtime.backends.machine import cores
from voxcpm_runtime.backends.portable.cache import load_lowered
from voxcpm_runtime.backends.portable.lowered import (
    GRAPH_DTYPES,
    PROBE_OUTPUT,
    Interface,
    Mode,
    checked_inputs,
)
from voxcpm_runtime.backends.portable.onnx_runtime import ort
from voxcpm_runtime.backends.portable.sessions import open_on_processor, session_errors
from voxcpm_runtime.backends.step_function import StepState
from voxcpm_runtime.storage.process_memory import mapped_zeros


class FairSemaphore:
    """A FIFO semaphore; with `threading.Semaphore` the last holder may overtake waiting threads."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._mutex = threading.Lock()
        self._waiters: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._mutex:
            if self._free:
                self._free -= 1
                return
            waiter = threading.Lock()
            waiter.acquire()
            self._waiters.append(waiter)
        try:
            waiter.acquire()
        except BaseException:  # Ctrl-C
            with self._mutex:
                acquired = waiter not in self._waiters
                if not acquired:
                    self._waiters.remove(waiter)
            if acquired:
                self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            if self._waiters:
                self._waiters.popleft().release()
            else:
                self._free += 1


# Limits concurrent calls of all step models on the processor, since each allocates its own tensors. One more than the
# cores keeps them all busy while a waiting thread wakes up.
COMPUTE_SLOTS = FairSemaphore(cores() + 1)


class PortableStepModel:
    """A step model, or one function of it: `(inputs, state) -> outputs`, with the state updated in place.

    state: state input -> the output with its next value; both are hidden from callers. A Core ML state `name` is an
    input `name` and an output `name_out` here. With `returns_rows` these outputs hold only the new rows of KV caches,
    which are written at the input "position". Functions of one package may share a state. mode: "plain" (float32),
    or "faithful" (every fp16 result rounded to fp16). With `probe`, the output "probe.max_abs" has the largest |value|
    of every fp16 operation. threads: per operation. Thread-safe, with one state per thread.

    Raises PackageError for a package that cannot be run, ValueError for a missing `state` tensor.
    """

    releases_gil = True

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
        self._package, self._name, self._mode = package, package.name, mode
        self.state, self._returns_rows = dict(state or {}), returns_rows
        self.lowered = load_lowered(package, cache_key=cache_key, function=function, mode=mode, probe=probe)
        inputs, outputs = ({t.name: t for t in ts} for ts in (self.lowered.inputs, self.lowered.outputs))
        missing = (self.state.keys() - inputs.keys()) | (set(self.state.values()) - outputs.keys())
        if missing:
            raise ValueError(f"{self._name} has no state tensor {', '.join(sorted(missing))}")
        self._caches = {name: inputs.pop(name) for name in self.state}
        self.inputs = inputs
        self.outputs = {n: o for n, o in outputs.items() if n not in self.state.values()}
        self._in_place = frozenset(
            i for i, o in self.state.items() if returns_rows or self.lowered.scattered.get(i) == o
        )
        self._visible = [*self.outputs, *([PROBE_OUTPUT] if self.lowered.probed else [])]
        prepared_key = None if cache_key is None else f"{cache_key}|{function}"
        with session_errors(package):
            self._session, self.weights = open_on_processor(
                package, self.lowered, mode, threads, prepared_key=prepared_key
            )

    def new_state(self) -> StepState:
        """See `StepFunction`."""
        outputs = {} if self._returns_rows else self.state
        return State(self._caches, outputs, self._in_place)

    def __call__(
        self, inputs: Mapping[str, np.ndarray], state: StepState | None = None
    ) -> dict[str, np.ndarray]:
        """See `StepFunction`. Raises ValueError also for a wrong dtype or shape."""
        feeds = checked_inputs(self._name, self.inputs, inputs, self._mode)
        if (state is None) != (not self.state):
            raise ValueError(f"{self._name} {'has a state: pass one' if self.state else 'has no state'}")
        if state is None:
            with COMPUTE_SLOTS, session_errors(self._package):
                return dict(zip(self._visible, self._session.run(self._visible, feeds), strict=True))
        if not isinstance(state, State) or state.in_place != self._in_place:
            raise ValueError(f"{self._name}: pass a state of this step model")
        with COMPUTE_SLOTS, session_errors(self._package):
            binding = state.binding(self._session)
            for name, array in feeds.items():
                binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
            names = [*(self.state.values() if self._returns_rows else ()), *self._visible]
            for name in names:
                # Again for each call: a bound output would keep the first call's shape.
                binding.bind_output(name)
            self._session.run_with_iobinding(binding)
            # The outputs of the state were bound first, these after them in order.
            values = binding.get_outputs()[-len(names) :]
            results = {name: value.numpy() for name, value in zip(names, values, strict=True)}
            if self._returns_rows:
                new_rows = {i: results.pop(o) for i, o in self.state.items()}
                state.set_rows(int(feeds["position"].item()), new_rows)
            state.advance()
            return results


class State:
    """The state of one stream on the processor, initially zeros. Not thread-safe.

    A tensor written by one scatter has a single buffer, updated in place. Any other is double-buffered. If the model
    returns new rows, it only reads the caches, and `outputs` is empty.
    """

    def __init__(
        self,
        tensors: Mapping[str, Interface],
        outputs: Mapping[str, str],
        in_place: frozenset[str],
    ) -> None:
        self.in_place = in_place
        self._outputs = outputs
        self._now: dict[str, np.ndarray] = {}
        self._next: dict[str, np.ndarray] = {}
        for name, tensor in tensors.items():
            shape, dtype = tensor.fixed_shape or (), GRAPH_DTYPES[tensor.dtype]
            self._now[name] = mapped_zeros(shape, dtype)
            if name not in in_place:
                self._next[name] = mapped_zeros(shape, dtype)
        self._bindings: dict[ort.InferenceSession, ort.IOBinding] = {}

    def binding(self, session: ort.InferenceSession) -> ort.IOBinding:
        """The session's binding to the state's buffers."""
        if session not in self._bindings:
            self._bindings[session] = session.io_binding()
            for name in self._now:
                self._bind(name, self._bindings[session])
        return self._bindings[session]

    def rows(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """See `StepState`."""
        return {name: array[:, :, start:stop].copy() for name, array in self._now.items()}

    def set_rows(self, start: int, rows: Mapping[str, np.ndarray]) -> None:
        """See `StepState`."""
        for name, array in rows.items():
            self._now[name][:, :, start : start + array.shape[2]] = array

    def advance(self) -> None:
        """Swap the double buffers after a run."""
        for name, written in self._next.items():
            self._next[name], self._now[name] = self._now[name], written
            for binding in self._bindings.values():
                self._bind(name, binding)

    def _bind(self, name: str, binding: ort.IOBinding) -> None:
        now = self._now[name]
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(now))
        if name in self._outputs:
            target = ort.OrtValue.ortvalue_from_numpy(self._next.get(name, now))
            binding.bind_ortvalue_output(self._outputs[name], target)
