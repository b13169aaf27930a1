"""Step models on Core ML itself, through coremltools. On a Mac only."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from voxcpm_constants.errors import BundleError, core_ml_reason
from voxcpm_constants.step_models import StepModel
from voxcpm_constants.targets import StateForm, updated_name
from voxcpm_runtime.backends.core_ml.buffers import InputBuffers
from voxcpm_runtime.backends.step_function import Array, StepState, write_rows


class PassedState:
    """State tensors in numpy: inputs of a prediction, then overwritten with its outputs."""

    def __init__(self, declared: StepModel, buffers: InputBuffers) -> None:
        self._declared = declared
        self.arrays = buffers.zero_state(self, declared.state)

    def predict(self, predictor: Any, features: dict[str, Array]) -> dict[str, Array]:
        """Predict from the inputs `features` and this state, which is updated; all outputs by name."""
        results: dict[str, Array] = predictor.predict(features | self.arrays)
        for tensor in self._declared.state:
            np.copyto(self.arrays[tensor.name], results[tensor.output_name])
        return results

    def numpy(self, name: str) -> npt.NDArray[np.float32]:
        """A copy of a state tensor, float32."""
        return self.arrays[name].copy()

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """Copies of positions start..stop of every KV cache (1, kv_heads, positions, head_dim), by tensor name."""
        return {name: array[:, :, start:stop].copy() for name, array in self.arrays.items()}

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        """Overwrite positions from `start` on with arrays (1, kv_heads, positions, head_dim), by tensor name."""
        for name, array in rows.items():
            self.arrays[name][:, :, start : start + array.shape[2]] = array


class RowsState(PassedState):
    """State tensors in numpy: inputs of a prediction, which returns the rows to write into them."""

    def predict(self, predictor: Any, features: dict[str, Array]) -> dict[str, Array]:
        """Predict from the inputs `features` and this state, which is updated in place; all outputs by name."""
        results: dict[str, Array] = predictor.predict(features | self.arrays)
        for tensor in self._declared.state:
            write_rows(self.arrays[tensor.name], results[updated_name(tensor, "rows")], features["position"])
        return results


class NativeState:
    """Core ML's own state, updated in place; the functions of one package may share it."""

    def __init__(
        self, native: Any, names: list[str], buffers: InputBuffers, predicting: threading.Lock
    ) -> None:
        self._native = native
        self._names = names
        self._buffers = buffers
        self._predicting = predicting

    def predict(self, predictor: Any, features: dict[str, Array]) -> dict[str, Array]:
        """Predict from the inputs `features` and this state, which Core ML updates; the outputs by name."""
        results: dict[str, Array] = predictor.predict(features, state=self._native)
        return results

    def numpy(self, name: str) -> npt.NDArray[np.float32]:
        """A copy of a state tensor, float32."""
        return np.array(self._native.read_state(name), np.float32)

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """Copies of positions start..stop of every KV cache, as in `PassedState.rows`."""
        return {name: self._native.read_state(name)[:, :, start:stop].copy() for name in self._names}

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        """Overwrite positions from `start` on, as in `PassedState.set_rows`."""
        for name, array in rows.items():
            with self._predicting:
                # All caches of one shape are written from one buffer, one after another.
                whole = self._buffers.filled("", self._native.read_state(name))
                whole[:, :, start : start + array.shape[2]] = array
                self._native.write_state(name, whole)


class CoreMLStepModel:
    """A step model, or one function of it, on Core ML.

    predictor: coremltools' CompiledMLModel. state: how the package handles its state. package: where the
    predictor comes from, which lives as long as this does. Any number of threads may call it, each with its own state;
    calls wait for each other, as Core ML requires.
    """

    releases_gil = False

    def __init__(
        self, declared: StepModel, predictor: Any, *, state: StateForm = "passed", package: object = None
    ) -> None:
        self._package = package
        self._declared = declared
        self._predictor = predictor
        self._state = state
        self._predicting = threading.Lock()
        self._buffers = InputBuffers(self)

    def new_state(self) -> PassedState | NativeState:
        """The state at the start of a stream: zeros."""
        if self._state == "native":
            names = [t.name for t in self._declared.state]
            return NativeState(self._predictor.make_state(), names, self._buffers, self._predicting)
        return (RowsState if self._state == "rows" else PassedState)(self._declared, self._buffers)

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """Run one step.

        Raises ValueError for an input that is missing and for a missing or foreign state, and BundleError where Core ML
        fails.
        """
        missing = [t.name for t in self._declared.inputs if t.name not in inputs]
        if missing:
            raise ValueError(f"{self._declared.name} needs an input {missing[0]}")
        if self._declared.state and state is None:
            raise ValueError(f"{self._declared.name} has a state: pass one")
        if not isinstance(state, PassedState | NativeState | None):
            raise ValueError(f"{self._declared.name}: the state is not of this step model")  # noqa: TRY004 - a wrong input
        try:
            with self._predicting:
                features = {
                    t.name: self._buffers.filled(t.name, inputs[t.name], _DTYPES[t.dtype])
                    for t in self._declared.inputs
                }
                results = (
                    self._predictor.predict(features)
                    if state is None
                    else state.predict(self._predictor, features)
                )
        except RuntimeError as error:
            raise BundleError(f"Core ML failed in {self._declared.name} ({core_ml_reason(error)})") from None
        # Results may be read-only views with gaps between their rows.
        return {t.name: np.array(results[t.name], np.float32, order="C") for t in self._declared.outputs}


_DTYPES = {"float32": np.float32, "int32": np.int32, "compute": np.float32}
"""The dtype of a declaration -> that of the array which Core ML is given."""
