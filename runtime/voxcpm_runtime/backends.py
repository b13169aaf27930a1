"""Step models as functions: on Core ML itself, or through the portable executor on ONNX Runtime."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from voxcpm_constants.errors import BundleError, InputError
from voxcpm_constants.manifest import package_path
from voxcpm_constants.step_models import STEP_MODEL_NAMES, Precision, StepModel, TensorSpec
from voxcpm_runtime.bundle import Bundle

Backend = Literal["auto", "coreml", "portable"]
BACKENDS: tuple[Backend, ...] = ("auto", "coreml", "portable")
COMPUTE_UNITS = {"all": "ALL", "cpu": "CPU_ONLY", "cpu_and_gpu": "CPU_AND_GPU", "cpu_and_ne": "CPU_AND_NE"}
"""Our spelling -> coremltools.ComputeUnit."""

Array = npt.NDArray[Any]


class StepFunction(Protocol):
    """(inputs, state) -> outputs by name, the state moved on in place; float32 and int32 arrays."""

    def new_state(self) -> Any:
        """The start of a stream."""

    def __call__(self, inputs: Mapping[str, Array], state: Any = None) -> dict[str, Array]: ...


def load_step_models(
    bundle: Bundle,
    backend: Backend = "auto",
    *,
    names: Iterable[str] = STEP_MODEL_NAMES,
    threads: int | None = None,
    compute_units: str = "all",
) -> dict[str, StepFunction]:
    """The named step models of an open bundle, in its precision.

    threads: of one operation, portable only. compute_units: a key of COMPUTE_UNITS, Core ML only.

    Raises InputError for a backend that this machine lacks, BundleError for a package that cannot be loaded or
    whose inputs and outputs are not the declared ones.
    """
    chosen = choose_backend(backend, sys.platform)
    if threads is not None and threads < 1:
        raise InputError(f"threads must be at least 1, got {threads}")
    if compute_units not in COMPUTE_UNITS:
        raise InputError(f"compute units must be one of {', '.join(COMPUTE_UNITS)}, got {compute_units!r}")
    load = _LOADERS[chosen](bundle, threads, compute_units)
    return {name: load(bundle.manifest.step_models[name]) for name in names}


def choose_backend(backend: str, platform: str) -> Literal["coreml", "portable"]:
    """What "auto" means on a platform (`sys.platform`). Raises InputError for Core ML anywhere but on a Mac."""
    if backend not in BACKENDS:
        raise InputError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    on_mac = platform == "darwin"
    if backend == "coreml" and not on_mac:
        raise InputError(
            f"backend coreml needs macOS, and this is {platform}; use --backend portable (or auto)"
        )
    if backend == "auto":
        return "coreml" if on_mac else "portable"
    return "coreml" if backend == "coreml" else "portable"


class CoreMLState:
    """State tensors in numpy: inputs of one prediction, replaced by its outputs."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = arrays

    def numpy(self, name: str) -> npt.NDArray[np.float32]:
        """A copy of a state tensor, float32."""
        return self.arrays[name].astype(np.float32)

    def set(self, name: str, array: Array) -> None:
        """Overwrite a state tensor. Raises ValueError for another shape."""
        now = self.arrays[name]
        if array.shape != now.shape:
            raise ValueError(f"state {name} has shape {now.shape}, not {array.shape}")
        self.arrays[name] = array.astype(now.dtype)

    def clone(self) -> CoreMLState:
        return CoreMLState({name: array.copy() for name, array in self.arrays.items()})


class CoreMLStepModel:
    """A step model on Core ML. predictor: coremltools' MLModel or CompiledMLModel."""

    def __init__(self, declared: StepModel, predictor: Any, precision: Precision) -> None:
        self._declared = declared
        self._predictor = predictor
        self._compute = np.float32 if precision == "fp32" else np.float16

    def new_state(self) -> CoreMLState:
        """Zeros."""
        return CoreMLState({t.name: np.zeros(t.shape_at(0), self._dtype(t)) for t in self._declared.state})

    def __call__(self, inputs: Mapping[str, Array], state: CoreMLState | None = None) -> dict[str, Array]:
        """Run one step. Raises ValueError for an input that is missing, or a missing state."""
        missing = [t.name for t in self._declared.inputs if t.name not in inputs]
        if missing:
            raise ValueError(f"{self._declared.name} needs an input {missing[0]}")
        if self._declared.state and state is None:
            raise ValueError(f"{self._declared.name} keeps a state: pass one")
        features = {
            t.name: np.ascontiguousarray(inputs[t.name], self._dtype(t)) for t in self._declared.inputs
        }
        results = self._predictor.predict(features | (state.arrays if state else {}))
        if state is not None:
            state.arrays = {t.name: results[t.output_name] for t in self._declared.state}
        return {t.name: np.asarray(results[t.name], np.float32) for t in self._declared.outputs}

    def _dtype(self, tensor: TensorSpec) -> Any:
        return self._compute if tensor.dtype == "compute" else np.dtype(tensor.dtype)


def check_interface(
    declared: StepModel, inputs: Iterable[str], outputs: Iterable[str], package: Path
) -> None:
    """Raises BundleError when a package's tensors, state among them, are not named as declared."""
    expected = {
        "inputs": {t.name for t in (*declared.inputs, *declared.state)},
        "outputs": {t.name for t in declared.outputs} | {t.output_name for t in declared.state},
    }
    found = {"inputs": set(inputs), "outputs": set(outputs)}
    for kind, names in expected.items():
        wrong = sorted(names ^ found[kind])
        if wrong:
            state = "missing" if wrong[0] in names else "unknown"
            raise BundleError(
                f"{package}: {kind} are not those of {declared.name} ({wrong[0]} is {state}); convert again"
            )


_Loader = Callable[[StepModel], StepFunction]


def _coreml(bundle: Bundle, threads: int | None, compute_units: str) -> _Loader:  # noqa: ARG001
    import coremltools as ct

    unit = getattr(ct.ComputeUnit, COMPUTE_UNITS[compute_units])

    def load(declared: StepModel) -> StepFunction:
        package = bundle.folder / package_path(bundle.precision, declared.name)
        compiled = package.with_suffix(".mlmodelc")
        try:
            if compiled.is_dir():
                return CoreMLStepModel(
                    declared, ct.models.CompiledMLModel(str(compiled), unit), bundle.precision
                )
            model = ct.models.MLModel(str(package), compute_units=unit)
        except Exception as error:  # noqa: BLE001 - coremltools raises what Core ML gives it, of any class
            raise BundleError(f"{package}: Core ML cannot load it ({_first_line(error)})") from None
        description = model.get_spec().description
        check_interface(
            declared, [t.name for t in description.input], [t.name for t in description.output], package
        )
        return CoreMLStepModel(declared, model, bundle.precision)

    return load


def _portable(bundle: Bundle, threads: int | None, compute_units: str) -> _Loader:  # noqa: ARG001
    from voxcpm_runtime.portable import PackageError, PortableStepModel

    def load(declared: StepModel) -> StepFunction:
        package = bundle.folder / package_path(bundle.precision, declared.name)
        state = {t.name: t.output_name for t in declared.state}
        key = bundle.manifest.package_key(bundle.precision, declared.name)
        try:
            model = PortableStepModel(package, cache_key=key, threads=threads, state=state)
        except (PackageError, ValueError) as error:
            raise BundleError(f"{package}: cannot be run here ({_first_line(error)})") from None
        check_interface(declared, [*model.inputs, *state], [*model.outputs, *state.values()], package)
        return model

    return load


_LOADERS: dict[str, Callable[[Bundle, int | None, str], _Loader]] = {"coreml": _coreml, "portable": _portable}


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
