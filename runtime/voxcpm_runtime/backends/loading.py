"""Step models as functions: on Core ML or Core AI, or through the portable executor on ONNX Runtime."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, NamedTuple

from voxcpm_constants.errors import BundleError, first_line
from voxcpm_constants.macos import macos
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import BASE_LM_STEP, Precision, StepModel
from voxcpm_constants.targets import StateForm, updated_name
from voxcpm_runtime.backends.choice import Backend, check_engine
from voxcpm_runtime.backends.composed_step_models import FunctionsByLength, by_length, in_turn
from voxcpm_runtime.backends.core_ml.compute_units import (
    AUTO,
    COREAI,
    CPU,
    PORTABLE,
    ComputeUnits,
    chosen_units,
    is_auto,
)
from voxcpm_runtime.backends.core_ml.loading import Note, RefusedError, check_system, load_functions
from voxcpm_runtime.backends.devices import CPU_DEVICE, Device, read_device
from voxcpm_runtime.backends.machine import backends
from voxcpm_runtime.backends.package_functions import PackageFunction, package_functions
from voxcpm_runtime.backends.step_function import NextPatch, StepFunction
from voxcpm_runtime.bundle.opening import Bundle

INSTALL_PORTABLE = 'pip install "onnx>=1.17" "onnxruntime>=1.22"'
"""What brings the portable backend; on a Mac the runtime does not require it."""


class Placed(NamedTuple):
    """A step model, and the compute unit that took it; PORTABLE for the portable backend."""

    model: StepFunction
    unit: str


def load_step_models(bundle: Bundle, backend: Backend = "auto", **options: Any) -> dict[str, StepFunction]:
    """Step models of an open bundle by name. Arguments, warnings and errors: see `place_step_models`."""
    return {name: placed.model for name, placed in place_step_models(bundle, backend, **options).items()}


def place_step_models(
    bundle: Bundle,
    backend: Backend = "auto",
    *,
    names: Iterable[str] | None = None,
    threads: int | None = None,
    device: str = CPU_DEVICE,
    compute_units: ComputeUnits = AUTO,
    measured: Mapping[str, str] | None = None,
    first_use: Note | None = lambda _: None,
) -> dict[str, Placed]:
    """Step models of an open bundle, in its precision, and the unit of each one.

    names: some of them; by default all that the bundle has. threads: threads of one operation. device: "cpu", or a
    GPU: "cuda", "cuda:N" or "tensorrt" (both for the portable backend only).
    compute_units, measured: see `chosen_units` (Core ML only). With backend "auto", what Core ML refuses runs on
    another unit or on the portable backend, with a warning, unless the caller named its unit. first_use (Core ML only):
    called with a line when a child process begins to compile a package or to load it for the first time, which takes
    minutes; None to do both in this process.

    Raises InputError for a backend that this machine lacks or that does not run the bundle, or compute units that
    there are not, DeviceError for a GPU that cannot be used, BundleError for a package that cannot be loaded, needs a
    newer system, or whose inputs and outputs are not the declared ones.
    """
    chosen = check_engine(backend, threads, compute_units, bundle, device=device)
    gpu = read_device(device)
    folder, manifest, precision = bundle.folder, bundle.manifest, bundle.precision
    wanted = tuple(manifest.step_models if names is None else names)
    last = (PORTABLE,) if backend == "auto" and PORTABLE in backends() else ()

    def portable(name: str) -> StepFunction:
        on_gpu = {} if gpu is None else {"device": gpu, "mode": "half"}
        return load_portable_step_model(folder, manifest, precision, name, threads=threads, **on_gpu)

    if chosen == "coreai":
        from voxcpm_runtime.backends.core_ai.worker import CoreAIWorker

        models = CoreAIWorker(folder, precision, wanted).step_models
        return {name: Placed(models[name], COREAI) for name in wanted}
    if chosen == "coreml":
        try:
            check_system(folder, manifest.target, macos())
        except BundleError as error:
            if not last or not all(is_auto(compute_units, name) for name in wanted):
                raise
            warnings.warn(f"{error}; until then it runs on the portable backend", stacklevel=2)
            chosen = "portable"
    if chosen == "portable":
        models = _all_at_once(wanted, portable)
        return {name: Placed(models[name], PORTABLE) for name in wanted}
    # The portable backend may have been here when it was measured.
    known = {name: unit for name, unit in (measured or {}).items() if unit != PORTABLE or last}
    units = chosen_units(compute_units, manifest.step_models, known)

    def load(name: str, unit: str) -> StepFunction:
        if unit == PORTABLE:
            return portable(name)

        def load_package(package: StepModel) -> StepFunction:
            functions = package_functions(folder, manifest, precision, package)
            digest = manifest.package_key(precision, package.name)
            return by_length(package, load_functions(functions, digest, unit, first_use))

        return in_turn(manifest.parts(name), load_package)

    def load_where_asked(name: str, unit: str) -> Placed:
        try:
            return Placed(load(name, unit), unit)
        except RefusedError as error:
            instead = "" if unit == CPU else f"--compute-units {name}={CPU} or "
            raise BundleError(f"{error}; try {instead}--backend portable") from None

    advice = "" if last else f"install the portable backend: {INSTALL_PORTABLE}"
    advice = advice if backend == "auto" else "try --backend portable"
    return {
        name: _first_that_loads(name, dict.fromkeys((units[name], CPU, *last)), partial(load, name), advice)
        if is_auto(compute_units, name)
        else load_where_asked(name, units[name])
        for name in wanted
    }


def _first_that_loads(
    name: str, units: Iterable[str], load: Callable[[str], StepFunction], advice: str = ""
) -> Placed:
    """A step model on the first unit that takes it, with a warning where that is not the first one.

    load(unit) loads it. Raises a BundleError if none takes it: the first unit's, the units that were tried, and the
    advice, if there is some.
    """
    names = tuple(units)
    refusals: list[BundleError] = []
    for unit in names:
        try:
            model = load(unit)
        except BundleError as error:
            refusals.append(error)
            continue
        if refusals:
            warnings.warn(
                f"{name} runs on {unit} and not on {' or '.join(names[: len(refusals)])} ({refusals[0]}); "
                "voxcpm-coreml doctor finds what is best on this machine",
                stacklevel=2,
            )
        return Placed(model, unit)
    raise BundleError("; ".join(filter(None, (f"{refusals[0]}", f"tried {', '.join(names)}", advice))))


def load_next_patch(bundle: Bundle, models: Mapping[str, StepFunction], device: str) -> NextPatch | None:
    """All step models between two patches in one call, on a GPU and for a bundle that allows it; otherwise None.

    models: the bundle's step models, loaded on the device. Raises DeviceError for a GPU with too little memory.
    """
    gpu = read_device(device)
    if gpu is None:
        return None
    from voxcpm_runtime.backends.gpu.joined_patch import joined_patch

    return joined_patch(models, gpu, bundle.manifest.sizes, bundle.architecture.traits, bundle.constants)


def load_portable_step_model(
    folder: Path, manifest: Manifest, precision: Precision, name: str, **options: Any
) -> StepFunction:
    """One step model on ONNX Runtime. Raises BundleError.

    options: keywords of `portable.PortableStepModel`, or with a `device` of `gpu.step_model.GPUStepModel`.

    The first function of each package is loaded now, to check the package, and the others when they are first called.
    """

    def load(package: StepModel) -> StepFunction:
        functions = package_functions(folder, manifest, precision, package)
        key = manifest.package_key(precision, package.name)

        def load_one(index: int) -> StepFunction:
            return _load_portable(functions[index], cache_key=key, **options)

        first = load_one(0)
        return first if len(functions) == 1 else FunctionsByLength(package, first, load_one)

    return in_turn(manifest.parts(name), load)


def arithmetic_key(units: Mapping[str, str], device: str = CPU_DEVICE) -> str:
    """A key that is equal if the same step models give the same numbers, up to rounding by the number of threads.

    units: the unit that every step model runs on, by name (`place_step_models`). device: the portable backend's.
    """
    version = ""
    if PORTABLE in units.values():
        # On a Mac ONNX Runtime need not be installed.
        from voxcpm_runtime.backends.portable.cache import LOWERING_VERSION
        from voxcpm_runtime.backends.portable.signed_products import exact

        version = f" {LOWERING_VERSION}{' signed' if exact() else ''}"
    if set(units.values()) == {COREAI}:
        return f"{COREAI} {package_version('coreai-core')}"
    if set(units.values()) == {PORTABLE}:
        gpu = read_device(device)
        return f"{PORTABLE}{version}" if gpu is None else f"{PORTABLE}{version} {gpu.kind}"
    return f"coreml{version} {','.join(f'{name}={unit}' for name, unit in sorted(units.items()))}"


def _all_at_once(names: Iterable[str], load: Callable[[str], StepFunction]) -> dict[str, StepFunction]:
    """Step models by name. Loading one is one core's work, outside Python's lock."""
    # The base LM takes longest, so it goes first.
    order = sorted(names, key=lambda name: name != BASE_LM_STEP)
    with ThreadPoolExecutor(os.cpu_count()) as opening:
        return dict(zip(order, opening.map(load, order), strict=True))


def _load_portable(
    function: PackageFunction, *, device: Device | None = None, **options: Any
) -> StepFunction:
    # On a Mac ONNX Runtime need not be installed.
    from voxcpm_runtime.backends.portable import PackageError, PortableStepModel

    step_model: Callable[..., PortableStepModel] = PortableStepModel
    if device is not None:
        from voxcpm_runtime.backends.gpu.step_model import GPUStepModel

        step_model = partial(GPUStepModel, device=device)
    # A native state too is an input and an output of the lowered function.
    lowered: StateForm = "passed" if function.state == "native" else function.state
    state = {t.name: updated_name(t, lowered) for t in function.declared.state}
    try:
        model = step_model(
            function.package,
            function=function.name,
            state=state,
            returns_rows=function.state == "rows",
            **options,
        )
    except (PackageError, ValueError) as error:
        raise BundleError(f"{function.package}: cannot be run here ({first_line(error)})") from None
    native = function.state == "native"
    passed = ([], []) if native else (list(state), list(state.values()))
    function.check([*model.inputs, *passed[0]], [*model.outputs, *passed[1]], list(state) if native else [])
    return model
