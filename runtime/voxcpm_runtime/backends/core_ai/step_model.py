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
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import Precision, StepModel, TensorSpec
from voxcpm_runtime.backends.composed_step_models import by_length, in_turn
from voxcpm_runtime.backends.core_ai.calls import awaited
from voxcpm_runtime.backends.core_ai.programs import check_program, compiled_program, whole_path
from voxcpm_runtime.backends.package_functions import PackageFunction, package_functions
from voxcpm_runtime.backends.step_function import Array, StepFunction, StepState, write_rows

INSTALL_CORE_AI = "pip install 'voxcpm-coreml[coreai]'"
_STANDARD_ERROR = 2


def check_installed() -> None:
    """Raises InputError, with what to install, where Core AI's runtime is missing."""
    _runtime()


def is_the_systems() -> bool:
    """Whether the runtime is the system's, on a Mac from macOS 27 on."""
    return bool(_runtime().SpecializationOptions.is_supported())


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
    """State tensors of one stream.

    arrays: Core AI's, which it writes in place; with caches that are inputs, numpy's. caches: names of the keys and the
    values of each layer in turn, whose arrays are stacked; none for the AudioVAE.
    """

    def __init__(self, arrays: dict[str, Any], caches: Sequence[str]) -> None:
        self.arrays = arrays
        self._caches = caches

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """Copies of positions start..stop of every KV cache (1, kv_heads, positions, head_dim), by tensor name.

        Contexts of the AudioVAE (1, channels, samples) have samples in place of positions.
        """
        if not self._caches:
            return {name: array[:, :, start:stop] for name, array in self.snapshot().items()}
        stacks = [_numpy(array) for array in self.arrays.values()]
        return {
            name: stacks[index % 2][index // 2][:, :, start:stop].copy()
            for index, name in enumerate(self._caches)
        }

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        """Overwrite positions from `start` on with arrays (1, kv_heads, positions, head_dim), by tensor name."""
        # `numpy` may return a copy.
        stacks = [np.array(_numpy(array)) for array in self.arrays.values()]
        for index, name in enumerate(self._caches):
            if name in rows:
                stacks[index % 2][index // 2][:, :, start : start + rows[name].shape[2]] = rows[name]
        for (name, array), stack in zip(self.arrays.items(), stacks, strict=True):
            self.arrays[name] = stack if isinstance(array, np.ndarray) else _runtime().NDArray(stack)

    def snapshot(self) -> dict[str, Array]:
        """Copies of all arrays."""
        return {name: np.array(_numpy(array)) for name, array in self.arrays.items()}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take the arrays of a snapshot."""
        for name, array in self.arrays.items():
            self.arrays[name] = (
                arrays[name] if isinstance(array, np.ndarray) else _runtime().NDArray(arrays[name])
            )


def _numpy(array: Any) -> Array:
    return array if isinstance(array, np.ndarray) else array.numpy()


class CoreAIStepModel:
    """A step model, or one function of it, on Core AI.

    model: Core AI's, whose functions return garbage when it is gone (john-rocky/coreai-model-zoo, conversion-guide).
    caches: see `CoreAIState`. Any number of threads may call it, each with its own state; calls wait for each other.
    """

    def __init__(
        self, packaged: PackageFunction, model: Any, precision: Precision, caches: Sequence[str]
    ) -> None:
        self._declared, self._native = packaged.declared, packaged.state == "native"
        self._model, self._function = model, model.load_function(packaged.name)
        self._caches = caches
        self._compute = np.float32 if precision == "fp32" else np.float16
        self._calling = threading.Lock()

    def new_state(self) -> CoreAIState:
        """The state at the start of a stream: zeros."""
        zeros = {t.name: np.zeros(t.shape_at(0), self._dtype(t)) for t in self._declared.state}
        native = _runtime().NDArray
        return CoreAIState({n: native(z) if self._native else z for n, z in zeros.items()}, self._caches)

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """Run one step.

        Raises ValueError for an input that is missing or of another shape or dtype and for a missing or foreign state,
        and BundleError where Core AI fails.
        """
        array = _runtime().NDArray
        features = {t.name: array(self._checked(t, inputs)) for t in self._declared.inputs}
        arrays = self._checked_state(state)
        try:
            with self._calling:
                if self._native:
                    results = awaited(self._function(features, state=arrays))
                else:
                    results = awaited(self._function(features | {n: array(c) for n, c in arrays.items()}))
        except (RuntimeError, ValueError, TypeError) as error:
            raise BundleError(f"Core AI failed in {self._declared.name} ({first_line(error)})") from None
        if not self._native:
            for name, stack in arrays.items():
                for cache, rows in zip(stack, results[f"{name}_rows"].numpy(), strict=True):
                    write_rows(cache, rows, inputs["position"])
        return {t.name: np.array(results[t.name].numpy(), np.float32) for t in self._declared.outputs}

    @property
    def descriptor(self) -> Any:
        """Names of the function's inputs, outputs and states, as the program has them."""
        return self._function.desc

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


def load_core_ai_step_model(
    folder: Path, manifest: Manifest, precision: Precision, name: str
) -> StepFunction:
    """One step model on Core AI's runtime. Raises BundleError for a program that it cannot load."""

    def load(package: StepModel) -> StepFunction:
        functions = package_functions(folder, manifest, precision, package)
        key = manifest.package_key(precision, package.name)
        caches = [tensor.name for tensor in package.state] if package.has_caches else []
        return by_length(package, load_functions(functions, key, precision, caches))

    return in_turn(manifest.parts(name), load)


def load_functions(
    functions: Sequence[PackageFunction], digest: str, precision: Precision, caches: Sequence[str]
) -> list[CoreAIStepModel]:
    """All functions of a Core AI program. digest: identifies the program. caches: see `CoreAIState`.

    Raises BundleError for a program that is damaged or cannot be loaded, or whose tensors are others.
    """
    program = functions[0].package
    if is_the_systems():
        # It compiles by itself.
        check_program(program)
        path, compiled = program, None
    else:
        compiled = compiled_program(program, digest)
        path = whole_path(compiled)
    try:
        with _without_messages():
            model = awaited(_runtime().AIModel.load(path, _options()))
            lacking = [f.name for f in functions if f.name not in model.function_names]
            loaded = [] if lacking else [CoreAIStepModel(f, model, precision, caches) for f in functions]
    except Exception as error:  # noqa: BLE001 - Core AI raises any class
        raise BundleError(
            f"{program}: Core AI cannot load it ({first_line(error)}); convert again, or update coreai-core"
        ) from None
    # What has been loaded is mapped: a compiled form for this process alone may be removed now.
    del compiled
    if lacking:
        raise BundleError(f"{program}: it has no function {lacking[0]}; convert again")
    for function, step in zip(functions, loaded, strict=True):
        names = step.descriptor
        function.check(names.input_names, names.output_names, names.state_names)
    return loaded


def _options() -> Any:
    """Where the system's runtime runs a program: on the GPU; None off a Mac, where there are no options.

    Without options the system splits a program over its units, and has aborted or computed wrongly
    (apple/coreai-torch 115 and 116, RahulRachuri/pocket-tts-swift NOTES 20).
    """
    runtime = _runtime()
    if not is_the_systems():
        return None
    return runtime.SpecializationOptions.from_preferred_compute_unit_kind(runtime.ComputeUnitKind.gpu())


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
