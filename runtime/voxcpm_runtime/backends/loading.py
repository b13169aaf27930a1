"""Step models as functions: on Core ML itself, or through the portable executor on ONNX Runtime."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from voxcpm_constants.errors import BundleError, InputError, first_line
from voxcpm_constants.macos import macos
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import Precision, StepModel
from voxcpm_constants.targets import StateForm, updated_name
from voxcpm_runtime.backends.compute_units import (
    AUTO,
    CPU,
    PORTABLE,
    USUAL,
    ComputeUnits,
    chosen_units,
    is_auto,
)
from voxcpm_runtime.backends.coreml_loading import check_system, load_functions
from voxcpm_runtime.backends.fallback import first_that_loads
from voxcpm_runtime.backends.functions_by_length import FunctionsByLength
from voxcpm_runtime.backends.machine import backends
from voxcpm_runtime.backends.package_functions import PackageFunction, package_functions
from voxcpm_runtime.backends.parts_in_turn import PartsInTurn
from voxcpm_runtime.backends.step_function import StepFunction
from voxcpm_runtime.bundle.opening import Bundle

Backend = Literal["auto", "coreml", "portable"]
BACKENDS: tuple[Backend, ...] = ("auto", "coreml", "portable")


def load_step_models(
    bundle: Bundle,
    backend: Backend = "auto",
    *,
    names: Iterable[str] | None = None,
    threads: int | None = None,
    compute_units: ComputeUnits = AUTO,
    measured: Mapping[str, str] | None = None,
) -> dict[str, StepFunction]:
    """Step models of an open bundle, in its precision. names: some of them; by default all that the bundle has.

    threads: threads of one operation (portable backend only). compute_units, measured: see `chosen_units` (Core ML
    only). Where "auto" chooses the unit, another takes its place if Core ML refuses it (`fallback`).

    Raises InputError for a backend that this machine lacks or compute units that there are not, BundleError for a
    package that cannot be loaded, needs a newer system, or whose inputs and outputs are not the declared ones.
    """
    chosen = check_engine(backend, threads, compute_units)
    folder, manifest, precision = bundle.folder, bundle.manifest, bundle.precision
    wanted = tuple(manifest.step_models if names is None else names)
    if chosen == "portable":
        return {
            name: load_portable_step_model(folder, manifest, precision, name, threads=threads)
            for name in wanted
        }
    check_system(folder, manifest.target, macos())
    units = chosen_units(compute_units, manifest.step_models, measured)
    last = (PORTABLE,) if backend == "auto" and PORTABLE in backends() else ()

    def load(name: str, unit: str) -> StepFunction:
        if unit == PORTABLE:
            return load_portable_step_model(folder, manifest, precision, name, threads=threads)

        def load_package(package: StepModel) -> StepFunction:
            functions = package_functions(folder, manifest, precision, package)
            digest = manifest.package_key(precision, package.name)
            loaded = load_functions(functions, digest, precision, unit)
            return (
                loaded[0] if len(loaded) == 1 else FunctionsByLength(package, loaded[0], loaded.__getitem__)
            )

        return _in_turn(manifest.parts(name), load_package)

    return {
        name: first_that_loads(name, dict.fromkeys((units[name], CPU, *last)), partial(load, name))
        if is_auto(compute_units, name)
        else load(name, units[name])
        for name in wanted
    }


def load_portable_step_model(
    folder: Path, manifest: Manifest, precision: Precision, name: str, **options: Any
) -> StepFunction:
    """One step model on ONNX Runtime. options: keywords of `portable.PortableStepModel`. Raises BundleError.

    The first function of each package is loaded now, to check the package, and the others when they are first called.
    """

    def load(package: StepModel) -> StepFunction:
        functions = package_functions(folder, manifest, precision, package)
        key = manifest.package_key(precision, package.name)

        def load_one(index: int) -> StepFunction:
            return _load_portable(functions[index], cache_key=key, **options)

        first = load_one(0)
        return first if len(functions) == 1 else FunctionsByLength(package, first, load_one)

    return _in_turn(manifest.parts(name), load)


def arithmetic_key(backend: str, compute_units: Mapping[str, str]) -> str:
    """A key that is equal if the same step models give the same numbers, up to rounding by the number of threads.

    compute_units: the unit of every step model, by name (`chosen_units`).
    """
    if choose_backend(backend) == "coreml":
        return f"coreml {','.join(f'{name}={unit}' for name, unit in sorted(compute_units.items()))}"
    # On a Mac ONNX Runtime need not be installed.
    from voxcpm_runtime.backends.portable.cache import LOWERING_VERSION

    return f"portable {LOWERING_VERSION}"


def check_engine(
    backend: str, threads: int | None, compute_units: ComputeUnits
) -> Literal["coreml", "portable"]:
    """The backend that `load_step_models` would use with these arguments. Raises InputError for a wrong one."""
    chosen = choose_backend(backend)
    if threads is not None and threads < 1:
        raise InputError(f"threads must be at least 1, got {threads}")
    chosen_units(compute_units, tuple(USUAL))
    return chosen


def choose_backend(backend: str) -> Literal["coreml", "portable"]:
    """The backend on this machine, "auto" resolved. Raises InputError for Core ML off the Mac."""
    if backend not in BACKENDS:
        raise InputError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    on_mac = macos() is not None
    if backend == "coreml" and not on_mac:
        raise InputError(
            f"backend coreml needs macOS, and this is {sys.platform}; use --backend portable (or auto)"
        )
    if backend == "auto":
        return "coreml" if on_mac else "portable"
    return "coreml" if backend == "coreml" else "portable"


def _in_turn(parts: Sequence[StepModel], load: Callable[[StepModel], StepFunction]) -> StepFunction:
    loaded = [load(part) for part in parts]
    return loaded[0] if len(loaded) == 1 else PartsInTurn(parts, loaded)


def _load_portable(function: PackageFunction, **options: Any) -> StepFunction:
    # On a Mac ONNX Runtime need not be installed.
    from voxcpm_runtime.backends.portable import PackageError, PortableStepModel

    # A native state too is an input and an output of the lowered function.
    lowered: StateForm = "passed" if function.state == "native" else function.state
    state = {t.name: updated_name(t, lowered) for t in function.declared.state}
    try:
        model = PortableStepModel(
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
