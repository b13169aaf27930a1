"""Step models on Apple's Core AI runtime: the system's from macOS 27 on, `coreai-core`'s on Linux.

Only the worker process (`worker`) loads them: Core AI's threads can abort an orderly exit of Python, and the runtime
writes a line to standard error per function. Apple's compiler aborts on an unknown version or a full disk, so it runs
in a child process, which runs this module.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from voxcpm_constants.errors import BundleError, InputError, first_line, install_command, os_reason
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import Precision, StepModel, TensorSpec
from voxcpm_runtime.backends.compilation import CompiledPackage, mark, run_child, run_in_child
from voxcpm_runtime.backends.packages import PackageFunction, open_step_model
from voxcpm_runtime.backends.step_function import Array, StepFunction, StepState
from voxcpm_runtime.bundle.verified_files import check_recorded, record_files

CORE_AI_PACKAGE = "coreai-core"
_INSTALL_MESSAGE = (
    f"backend coreai needs Apple's Core AI runtime: {install_command('coreai')} "
    "(Python 3.11 or newer, on Linux x86-64 or a Mac with Apple silicon)"
)


def check_installed() -> None:
    """Raises InputError, with what to install, if Core AI's runtime is missing."""
    if importlib.util.find_spec("coreai") is None:
        raise InputError(_INSTALL_MESSAGE)


@functools.cache
def _runtime() -> Any:
    try:
        return importlib.import_module("coreai.runtime")
    except ImportError:
        raise InputError(_INSTALL_MESSAGE) from None


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return _loop().run_until_complete(coroutine)


class CoreAIState:
    """State tensors of one stream.

    arrays: Core AI's, which it writes in place, or numpy's if the caches are inputs. caches: names of the keys and
    values of each layer, which are stacked in two arrays; empty for the AudioVAE.
    """

    def __init__(self, arrays: dict[str, Any], caches: Sequence[str]) -> None:
        self.arrays = arrays
        self._caches = caches

    def _layers(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Views of the arrays by tensor name."""
        if not self._caches:
            return dict(arrays)
        stacks = list(arrays.values())
        return {name: stacks[index % 2][index // 2] for index, name in enumerate(self._caches)}

    def _copies(self) -> dict[str, Array]:
        arrays = self.arrays.items()
        return {n: np.array(a if isinstance(a, np.ndarray) else a.numpy()) for n, a in arrays}

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """See `StepState`. Contexts of the AudioVAE (1, channels, samples) have samples instead of positions."""
        return {name: array[:, :, start:stop] for name, array in self._layers(self._copies()).items()}

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        """See `StepState`."""
        arrays = self._copies()
        layers = self._layers(arrays)
        for name, new in rows.items():
            layers[name][:, :, start : start + new.shape[2]] = new
        for name, array in self.arrays.items():
            own = arrays[name]
            self.arrays[name] = own if isinstance(array, np.ndarray) else _runtime().NDArray(own)


class CoreAIStepModel:
    """A step model, or one function of it, on Core AI. Not thread-safe.

    model: Core AI's, kept alive for its functions (john-rocky/coreai-model-zoo, conversion-guide).
    caches: see `CoreAIState`.
    """

    releases_gil = True

    def __init__(
        self, packaged: PackageFunction, model: Any, precision: Precision, caches: Sequence[str]
    ) -> None:
        self._declared, self._native = packaged.declared, packaged.state == "native"
        self._model, self._function = model, model.load_function(packaged.name)
        self._caches = caches
        self._compute = np.float32 if precision == "fp32" else np.float16
        found = self._function.desc
        packaged.check(found.input_names, found.output_names, found.state_names)

    def new_state(self) -> CoreAIState:
        """See `StepFunction`."""
        zeros = {t.name: np.zeros(t.shape_at(0), self._dtype(t)) for t in self._declared.state}
        native = _runtime().NDArray
        return CoreAIState({n: native(z) if self._native else z for n, z in zeros.items()}, self._caches)

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """See `StepFunction`. Raises BundleError if Core AI fails."""
        array, name = _runtime().NDArray, self._declared.name
        features = {t.name: array(self._checked(t, inputs)) for t in self._declared.inputs}
        arrays = state.arrays if isinstance(state, CoreAIState) else {}
        if arrays.keys() != {t.name for t in self._declared.state}:
            raise ValueError(f"{name}: pass a state of this step model")
        if not self._native:
            features |= {n: array(cache) for n, cache in arrays.items()}
        try:
            results = _run(self._function(features, **({"state": arrays} if self._native else {})))
        except (RuntimeError, ValueError, TypeError) as error:
            raise BundleError(f"Core AI failed in {name} ({first_line(error)})") from None
        if not self._native:
            start = int(inputs["position"].item())
            for stacked, stack in arrays.items():
                rows = results[f"{stacked}_rows"].numpy()
                stack[:, :, :, start : start + rows.shape[3]] = rows
        return {t.name: np.array(results[t.name].numpy(), np.float32) for t in self._declared.outputs}

    def _checked(self, tensor: TensorSpec, inputs: Mapping[str, Array]) -> Array:
        """An input in the function's dtype. Core AI may abort the process on a wrong shape."""
        given, dtype = np.asarray(inputs.get(tensor.name)), self._dtype(tensor)
        if given.shape != tensor.shape_at(0) or not np.can_cast(given.dtype, dtype, "same_kind"):
            raise ValueError(
                f"{self._declared.name}: expected {tensor.name} as {tensor.dtype} {tensor.shape_at(0)}, "
                f"got {given.dtype} {given.shape}"
            )
        return np.ascontiguousarray(given, dtype)

    def _dtype(self, tensor: TensorSpec) -> Any:
        return self._compute if tensor.dtype == "compute" else np.dtype(tensor.dtype)


def load_core_ai_step_model(
    folder: Path, manifest: Manifest, precision: Precision, name: str
) -> StepFunction:
    """One step model on Core AI. Raises BundleError for a program that cannot be loaded."""

    def open_package(
        package: StepModel, functions: Sequence[PackageFunction], key: str
    ) -> Callable[[int], StepFunction]:
        model = _load_program(functions, key)
        caches = [tensor.name for tensor in package.state] if package.has_caches else []
        return [CoreAIStepModel(f, model, precision, caches) for f in functions].__getitem__

    return open_step_model(folder, manifest, precision, name, open_package)


def _load_program(functions: Sequence[PackageFunction], digest: str) -> Any:
    """Core AI's model of a program. digest: of the program's content.

    The system's runtime compiles the program itself. It is restricted to the GPU: by default it splits a program over
    all units, and has crashed or given wrong results (apple/coreai-torch 115 and 116, RahulRachuri/pocket-tts-swift
    NOTES 20).
    """
    program, runtime = functions[0].package, _runtime()
    if runtime.SpecializationOptions.is_supported():
        path, compiled = program, None
        options = runtime.SpecializationOptions.from_preferred_compute_unit_kind(
            runtime.ComputeUnitKind.gpu()
        )
    else:
        (path, compiled), options = compiled_program(program, digest), None
    try:
        model = _run(runtime.AIModel.load(path, options))
    except Exception as error:  # noqa: BLE001 - Core AI raises any class
        raise BundleError(
            f"{program}: Core AI cannot load it ({first_line(error)}); convert again, or update coreai-core"
        ) from None
    # A temp folder may be removed now that its files are mapped.
    del compiled
    return model


def compiled_program(program: Path, digest: str) -> tuple[Path, CompiledPackage]:
    """The compiled form of a program for this machine, and its owner, to be kept alive until it is loaded.

    digest: of the program's content. A damaged form is recompiled. Raises BundleError.
    """
    kind = f"{CORE_AI_PACKAGE}-{version(CORE_AI_PACKAGE)}.aimodelx"
    compiled = CompiledPackage(program, digest, compile_program, kind)
    try:
        path, new = compiled.path()
        if not new:
            try:
                # Core AI runs altered code, or crashes on it.
                check_recorded(path)
            except BundleError:
                path, _ = compiled.path(damaged=mark(path))
    except OSError as error:
        raise BundleError(
            f"cannot write Core AI's compiled programs ({os_reason(error)}); free space"
        ) from None
    return path, compiled


def compile_program(program: Path, compiled: Path) -> None:
    """Compile a program into a new folder.

    Raises BundleError if the compiler rejects the program, OSError for a full disk.
    """
    compiled.mkdir()
    code, words = run_child(__name__, str(program.absolute()), str(compiled.absolute()))
    if code == -signal.SIGBUS:
        # The compiler writes to a memory-mapped file.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if code != 0:
        raise BundleError(
            f"{program}: Core AI cannot compile it ({words}); convert again, or update {CORE_AI_PACKAGE}"
        )
    record_files(compiled)


def _compile_here(program: str, compiled: str) -> None:
    from coreai.authoring import AIModelAsset  # takes half a second

    # Private, but coreai-core is pinned. The public `executable` compiles at every start, into a temp folder that is
    # left behind if this process is killed.
    AIModelAsset.load(Path(program))._write_odix(Path(compiled))  # noqa: SLF001


if __name__ == "__main__":
    run_in_child(functools.partial(_compile_here, *sys.argv[1:]))
