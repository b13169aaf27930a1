"""Step models on Apple's Core AI runtime: the system's from macOS 27 on, that of the package `coreai-core` on Linux."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import os
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from voxcpm_constants.errors import BundleError, InputError, first_line
from voxcpm_constants.step_models import Precision, StepModel, TensorSpec
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


@functools.cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The event loop on which Core AI runs, in a thread of its own: Core AI's functions are coroutines."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="core-ai", daemon=True).start()
    return loop


def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(coroutine, _event_loop()).result()


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
        for name, array in rows.items():
            self.arrays[name].numpy()[:, :, start : start + array.shape[2]] = array


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

        Raises ValueError for an input that is missing and for a missing or foreign state, and BundleError where Core AI
        fails.
        """
        name, array = self._declared.name, _runtime().NDArray
        if missing := [t.name for t in self._declared.inputs if t.name not in inputs]:
            raise ValueError(f"{name} needs an input {missing[0]}")
        own = {t.name for t in self._declared.state}
        arrays = state.arrays if isinstance(state, CoreAIState) else {}
        if arrays.keys() != own:
            raise ValueError(f"{name}: pass a state that this step model made")
        features = {
            t.name: array(np.ascontiguousarray(inputs[t.name], self._dtype(t))) for t in self._declared.inputs
        }
        try:
            with self._calling:
                results = _awaited(
                    self._function(features, state=arrays)
                    if self._native
                    else self._function(features | arrays)
                )
        except (RuntimeError, ValueError, TypeError) as error:
            raise BundleError(f"Core AI failed in {name} ({first_line(error)})") from None
        if isinstance(state, CoreAIState) and not self._native:
            state.arrays = {t.name: results[t.output_name] for t in self._declared.state}
        return {t.name: np.array(results[t.name].numpy(), np.float32) for t in self._declared.outputs}

    def _dtype(self, tensor: TensorSpec) -> Any:
        return self._compute if tensor.dtype == "compute" else np.dtype(tensor.dtype)


def load_functions(functions: Sequence[PackageFunction], precision: Precision) -> list[CoreAIStepModel]:
    """All functions of a Core AI program. Raises BundleError for one that cannot be loaded, or of other tensors."""
    path = functions[0].package
    _runtime()
    try:
        with _without_messages():
            loaded = _awaited(_loaded(path, [function.name for function in functions]))
    except Exception as error:  # noqa: BLE001 - Core AI raises what its compiler gives it, of any class
        raise BundleError(
            f"{path}: Core AI cannot load it ({first_line(error)}); convert again, or update coreai-core"
        ) from None
    for function, model in zip(functions, loaded, strict=True):
        if model is None:
            raise BundleError(f"{path}: it has no function {function.name}; convert again")
        names = model.desc
        function.check(names.input_names, names.output_names, names.state_names)
    return [
        CoreAIStepModel(function, model, precision) for function, model in zip(functions, loaded, strict=True)
    ]


async def _loaded(path: Path, names: Sequence[str]) -> list[Any]:
    asset = importlib.import_module("coreai.authoring").AIModelAsset.load(path)
    # Off macOS 27 this compiles the program into a temporary folder, which is removed at the end of the context; what
    # has been loaded stays.
    async with asset.executable() as model:
        return [model.load_function(name) if name in model.function_names else None for name in names]


@contextlib.contextmanager
def _without_messages() -> Iterator[None]:
    """A context in which nothing arrives at the standard error stream: the runtime writes a line for each function."""
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
