"""Step models on Core ML, through coremltools. macOS only."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from voxcpm_constants.core_ml_errors import core_ml_reason
from voxcpm_constants.errors import BundleError
from voxcpm_constants.step_models import StepModel
from voxcpm_constants.targets import StateForm, updated_name
from voxcpm_runtime.backends.step_function import Array, StepState

LINGER_SECONDS = 10.0
"""Seconds that input arrays outlive their step model: ten times as long as Core ML uses them (coremltools 2827)."""
# Core ML decrements without the GIL, so that one of two concurrent decrements may be lost.
_SPARE_REFERENCES = 16
_DTYPES = {"float32": np.float32, "int32": np.int32, "compute": np.float32}
"""Declared dtype -> dtype of the array passed to Core ML."""


class InputBuffers:
    """The arrays from which Core ML reads the inputs and states of a step model, `owner`, and which outlive it.

    Core ML releases the inputs of a prediction about a second later, on its own thread, where coremltools 9.0 does not
    hold the GIL: the process would crash if that was the last reference (pull requests 2827 and 2829). coremltools
    copies float16 inputs to its own arrays, so all are C-contiguous float32 or int32.
    """

    def __init__(self, owner: object) -> None:
        self._inputs: dict[tuple[str, tuple[int, ...]], Array] = {}
        self._unused_states: list[dict[str, Array]] = []
        self._all: list[Array] = []
        # Otherwise Python would free them at exit, while Core ML may still use them.
        _count_reference("Py_IncRef", self._all)
        weakref.finalize(owner, _free_later, self._all).atexit = False

    def filled(self, name: str, values: npt.ArrayLike, dtype: Any = np.float32) -> Array:
        """The array for an input of that name and shape, filled with values; the next such call overwrites it."""
        key = name, np.shape(values)
        if key not in self._inputs:
            self._inputs[key] = self._new(key[1], dtype)
        np.copyto(self._inputs[key], values, casting="same_kind")
        return self._inputs[key]

    def zero_state(self, owner: object, declared: StepModel) -> dict[str, Array]:
        """Zeros for the state tensors, by name. The arrays are reused when `owner` is freed."""
        try:
            arrays = self._unused_states.pop()
        except IndexError:
            arrays = {t.name: self._new(t.shape_at(0)) for t in declared.state}
        for array in arrays.values():
            array.fill(0)
        weakref.finalize(owner, self._unused_states.append, arrays).atexit = False
        return arrays

    def _new(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        array = np.zeros(shape, dtype)
        self._all += [array] * _SPARE_REFERENCES
        return array


def _free_later(arrays: list[Array]) -> None:
    timer = threading.Timer(LINGER_SECONDS, _count_reference, ("Py_DecRef", arrays))
    timer.daemon = True
    # No thread can be started at exit; then they are never freed.
    with suppress(RuntimeError):
        timer.start()


def _count_reference(function: str, item: object) -> None:
    getattr(ctypes.pythonapi, function)(ctypes.py_object(item))


class PassedState:
    """State tensors in numpy: inputs of a prediction, updated from its outputs (completely, or only new rows)."""

    def __init__(self, declared: StepModel, buffers: InputBuffers, form: StateForm) -> None:
        self._outputs = {t.name: updated_name(t, form) for t in declared.state}
        self._returns_rows = form == "rows"
        self.arrays = buffers.zero_state(self, declared)

    def predict(self, predictor: Any, features: dict[str, Array]) -> dict[str, Array]:
        """All outputs by name; the state is updated."""
        results: dict[str, Array] = predictor.predict(features | self.arrays)
        if self._returns_rows:
            new_rows = {name: results[output] for name, output in self._outputs.items()}
            self.set_rows(int(features["position"].item()), new_rows)
        else:
            for name, output in self._outputs.items():
                np.copyto(self.arrays[name], results[output])
        return results

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """See `StepState`."""
        return {name: array[:, :, start:stop].copy() for name, array in self.arrays.items()}

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        """See `StepState`."""
        for name, array in rows.items():
            self.arrays[name][:, :, start : start + array.shape[2]] = array


class NativeState:
    """Core ML's own state, updated in place; the functions of one package may share it."""

    def __init__(
        self, native: Any, declared: StepModel, buffers: InputBuffers, predicting: threading.Lock
    ) -> None:
        self._native, self._declared = native, declared
        self._buffers, self._predicting = buffers, predicting

    def predict(self, predictor: Any, features: dict[str, Array]) -> dict[str, Array]:
        """The outputs by name; Core ML updates the state."""
        return dict(predictor.predict(features, state=self._native))

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """See `StepState`."""
        names = [t.name for t in self._declared.state]
        return {name: self._native.read_state(name)[:, :, start:stop].copy() for name in names}

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        """See `StepState`."""
        for name, array in rows.items():
            with self._predicting:
                # All caches of one shape share a buffer.
                whole = self._buffers.filled("", self._native.read_state(name))
                whole[:, :, start : start + array.shape[2]] = array
                self._native.write_state(name, whole)


class CoreMLStepModel:
    """A step model, or one function of it, on Core ML. Thread-safe, with one state per thread.

    predictor: coremltools' CompiledMLModel. package: kept alive, as it may own the compiled files.
    """

    releases_gil = False

    def __init__(
        self, declared: StepModel, predictor: Any, *, state: StateForm = "passed", package: object = None
    ) -> None:
        self._package, self._declared, self._predictor, self._state = package, declared, predictor, state
        self._predicting = threading.Lock()
        self._buffers = InputBuffers(self)

    def new_state(self) -> PassedState | NativeState:
        """See `StepFunction`."""
        if self._state == "native":
            native = self._predictor.make_state()
            return NativeState(native, self._declared, self._buffers, self._predicting)
        return PassedState(self._declared, self._buffers, self._state)

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """See `StepFunction`. Raises BundleError if Core ML fails."""
        declared = self._declared
        if (declared.state and state is None) or not isinstance(state, PassedState | NativeState | None):
            raise ValueError(f"{declared.name}: pass a state of this step model")
        try:
            with self._predicting:
                features = {
                    t.name: self._buffers.filled(t.name, inputs[t.name], _DTYPES[t.dtype])
                    for t in declared.inputs
                }
                if state is None:
                    results = self._predictor.predict(features)
                else:
                    results = state.predict(self._predictor, features)
        except RuntimeError as error:
            raise BundleError(f"Core ML failed in {declared.name} ({core_ml_reason(error)})") from None
        # Results may be read-only, strided views.
        return {t.name: np.array(results[t.name], np.float32, order="C") for t in declared.outputs}
