"""Step models on Apple's Core AI runtime: the system's from macOS 27 on, that of the package `coreai-core` on Linux."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from voxcpm_constants.errors import BundleError, InputError, first_line
from voxcpm_constants.step_models import Precision, StepModel, TensorSpec
from voxcpm_runtime.backends.core_ai_calls import awaited
from voxcpm_runtime.backends.core_ai_programs import check_program, compiled_program, whole_path
from voxcpm_runtime.backends.package_functions import PackageFunction
from voxcpm_runtime.backends.step_function import Array, StepState

INSTALL_CORE_AI = "pip install 'voxcpm-coreml[coreai]'"
_STANDARD_ERROR = 2


def check_installed() -> None:
    """Raises InputError, with what to install, where Core AI's runtime is missing."""
    _runtime()


@functools.cache
def _runtime() -> Any:
    try:
        return importlib.import_module("coreai.runtime")
    except ImportError:
        raise InputError(
            f"backend coreai needs Apple's Core AI runtime: {INSTALL_CORE_AI} "
            "(Python 3.11 or newer, on Linux x86-64 or a Mac with Apple silicon)"
        ) from None


class CoreAIState:
    """State tensors of one stream, which Core AI holds: it writes native ones in place and replaces passed ones."""

    def __init__(self, declared: StepModel, arrays: dict[str, Any]) -> None:
        self.declared = declared
        self.arrays = arrays

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """Copies of positions start..stop of every KV cache (1, kv_heads, positions, head_dim), by tensor name."""
        return {name: array.numpy()[:, :, start:stop].copy() for name, array in self.arrays.items()}

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        """Overwrite positions from `start` on with arrays (1, kv_heads, positions, head_dim), by tensor name."""
        for name, given in rows.items():
            # `numpy` may return a copy.
            whole = np.array(self.arrays[name].numpy())
            whole[:, :, start : start + given.shape[2]] = given
            self.arrays[name] = _runtime().NDArray(whole)


class CoreAIStepModel:
    """A step model, or one function of it, on Core AI.

    function: Core AI's. Any number of threads may call it, each with its own state; calls wait for each other.
    """

    def __init__(self, packaged: PackageFunction, function: Any, precision: Precision) -> None:
        self._declared, self._native = packaged.declared, packaged.state == "native"
        self._function = function
        self._compute = np.float32 if precision == "fp32" else np.float16
        self._calling = threading.Lock()

    def new_state(self) -> CoreAIState:
        """The state at the start of a stream: zeros."""
        array = _runtime().NDArray
        zeros = {t.name: array(np.zeros(t.shape_at(0), self._dtype(t))) for t in self._declared.state}
        return CoreAIState(self._declared, zeros)

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """Run one step.

        Raises ValueError for an input that is missing or of another shape or dtype and for a missing or foreign state,
        and BundleError where Core AI fails.
        """
        name, array = self._declared.name, _runtime().NDArray
        features = {t.name: array(self._checked(t, inputs)) for t in self._declared.inputs}
        arrays = self._checked_state(state)
        try:
            with self._calling:
                results = awaited(
                    self._function(features, state=arrays)
                    if self._native
                    else self._function(features | arrays)
                )
        except (RuntimeError, ValueError, TypeError) as error:
            raise BundleError(f"Core AI failed in {name} ({first_line(error)})") from None
        if isinstance(state, CoreAIState) and not self._native:
            state.arrays = {t.name: results[t.output_name] for t in self._declared.state}
        return {t.name: np.array(results[t.name].numpy(), np.float32) for t in self._declared.outputs}

    def _checked(self, tensor: TensorSpec, inputs: Mapping[str, Array]) -> Array:
        """An input as the function takes it: Core AI may end the process at another shape."""
        name, dtype = self._declared.name, self._dtype(tensor)
        if tensor.name not in inputs:
            raise ValueError(f"{name} needs an input {tensor.name}")
        given = np.asarray(inputs[tensor.name])
        if not np.can_cast(given.dtype, dtype, "same_kind"):
            raise ValueError(f"{name}: {tensor.name} must be {np.dtype(dtype)}, not {given.dtype}")
        if given.shape != tensor.shape_at(0):
            raise ValueError(f"{name}: {tensor.name} must have shape {tensor.shape_at(0)}, not {given.shape}")
        return np.ascontiguousarray(given, dtype)

    def _checked_state(self, state: StepState | None) -> dict[str, Any]:
        """The arrays of a state of this step model."""
        own = {t.name: t.shape_at(0) for t in self._declared.state}
        if state is None and own:
            raise ValueError(f"{self._declared.name} has a state: pass one")
        arrays = state.arrays if isinstance(state, CoreAIState) else {}
        if {name: tuple(array.shape) for name, array in arrays.items()} != own or (state and not own):
            raise ValueError(f"{self._declared.name}: the state is not of this step model")
        return arrays

    def _dtype(self, tensor: TensorSpec) -> Any:
        return self._compute if tensor.dtype == "compute" else np.dtype(tensor.dtype)


def load_functions(
    functions: Sequence[PackageFunction], digest: str, precision: Precision
) -> list[CoreAIStepModel]:
    """All functions of a Core AI program. digest: identifies the program.

    Raises BundleError for a program that is damaged or cannot be loaded, or whose tensors are others.
    """
    program = functions[0].package
    runtime = _runtime()
    if runtime._use_os_coreai:  # noqa: SLF001 - public by its __all__: the system's, which compiles by itself
        check_program(program)
        path, compiled = program, None
    else:
        compiled = compiled_program(program, digest)
        path = whole_path(compiled)
    try:
        with _without_messages():
            loaded = awaited(_loaded(path, [function.name for function in functions]))
    except Exception as error:  # noqa: BLE001 - Core AI raises any class
        raise BundleError(
            f"{program}: Core AI cannot load it ({first_line(error)}); convert again, or update coreai-core"
        ) from None
    # What has been loaded is mapped: a compiled form for this process alone may be removed now.
    del compiled
    for function, model in zip(functions, loaded, strict=True):
        if model is None:
            raise BundleError(f"{program}: it has no function {function.name}; convert again")
        names = model.desc
        function.check(names.input_names, names.output_names, names.state_names)
    return [
        CoreAIStepModel(function, model, precision) for function, model in zip(functions, loaded, strict=True)
    ]


async def _loaded(path: Path, names: Sequence[str]) -> list[Any]:
    model = await _runtime().AIModel.load(path)
    return [model.load_function(name) if name in model.function_names else None for name in names]


_silencing = threading.Lock()


@contextlib.contextmanager
def _without_messages() -> Iterator[None]:
    """A context in which nothing arrives at the standard error stream: the runtime writes a line for each function."""
    with _silencing:
        sys.stderr.flush()
        kept = os.dup(_STANDARD_ERROR)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, _STANDARD_ERROR)
            yield
        finally:
            os.dup2(kept, _STANDARD_ERROR)
            os.close(nowhere)
            os.close(kept)
