"""Step models as functions: on Core ML itself, or through the portable executor on ONNX Runtime."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from voxcpm_constants.errors import BundleError, InputError, first_line
from voxcpm_constants.macos import macos
from voxcpm_constants.manifest import Manifest, package_path
from voxcpm_constants.step_models import STEP_MODEL_NAMES, Precision, StepModel
from voxcpm_constants.targets import package_form
from voxcpm_runtime.backends.coreml import COMPUTE_UNITS, CoreMLStepModel, interface_names, load_predictor
from voxcpm_runtime.backends.functions_by_length import FunctionsByLength
from voxcpm_runtime.backends.step_function import StepFunction
from voxcpm_runtime.bundle.opening import Bundle

Backend = Literal["auto", "coreml", "portable"]
BACKENDS: tuple[Backend, ...] = ("auto", "coreml", "portable")


def load_step_models(
    bundle: Bundle,
    backend: Backend = "auto",
    *,
    names: Iterable[str] = STEP_MODEL_NAMES,
    threads: int | None = None,
    compute_units: str = "all",
) -> dict[str, StepFunction]:
    """The named step models of an open bundle, in its precision.

    threads: threads of one operation (portable backend only). compute_units: a key of COMPUTE_UNITS (Core ML only).

    Raises InputError for a backend that this machine lacks, BundleError for a package that cannot be loaded or
    whose inputs and outputs are not the declared ones.
    """
    chosen = check_engine(backend, threads, compute_units)
    folder, manifest, precision = bundle.folder, bundle.manifest, bundle.precision
    if chosen == "portable":
        return {
            name: load_portable_step_model(folder, manifest, precision, name, threads=threads)
            for name in names
        }
    load = partial(_load_coreml, precision=precision, compute_units=compute_units)
    return {name: _load_step_model(folder, manifest, precision, name, load) for name in names}


def load_portable_step_model(
    folder: Path, manifest: Manifest, precision: Precision, name: str, **options: Any
) -> StepFunction:
    """One step model on ONNX Runtime. options: keywords of `portable.PortableStepModel`. Raises BundleError."""
    load = partial(_load_portable, cache_key=manifest.package_key(precision, name), **options)
    return _load_step_model(folder, manifest, precision, name, load)


def arithmetic_key(backend: str, compute_units: str) -> str:
    """A key that is equal if the same step models give the same numbers, up to rounding by the number of threads."""
    if choose_backend(backend) == "coreml":
        return f"coreml {compute_units}"
    # On a Mac ONNX Runtime need not be installed.
    from voxcpm_runtime.backends.portable.cache import LOWERING_VERSION

    return f"portable {LOWERING_VERSION}"


def check_engine(backend: str, threads: int | None, compute_units: str) -> Literal["coreml", "portable"]:
    """The backend that `load_step_models` would use with these arguments. Raises InputError for a wrong one."""
    chosen = choose_backend(backend)
    if threads is not None and threads < 1:
        raise InputError(f"threads must be at least 1, got {threads}")
    if compute_units not in COMPUTE_UNITS:
        raise InputError(f"compute units must be one of {', '.join(COMPUTE_UNITS)}, got {compute_units!r}")
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


def check_interface(
    declared: StepModel,
    inputs: Iterable[str],
    outputs: Iterable[str],
    package: Path,
    *,
    states: Iterable[str] | None = None,
) -> None:
    """Raises BundleError if a package's tensors are not named as declared.

    states: names of Core ML's own states; None if state is passed as inputs and outputs.
    """
    state = {t.name for t in declared.state}
    expected = {"inputs": {t.name for t in declared.inputs}, "outputs": {t.name for t in declared.outputs}}
    found = {"inputs": set(inputs), "outputs": set(outputs)}
    if states is None:
        expected["inputs"] |= state
        expected["outputs"] |= {t.output_name for t in declared.state}
    else:
        expected["states"], found["states"] = state, set(states)
    for kind, names in expected.items():
        wrong = sorted(names ^ found[kind])
        if wrong:
            what = "missing" if wrong[0] in names else "unknown"
            raise BundleError(
                f"{package}: {kind} are not those of {declared.name} ({wrong[0]} is {what}); convert again"
            )


class _Function(NamedTuple):
    """One function of a package, the unit of loading."""

    package: Path
    name: str
    declared: StepModel
    keeps_state: bool

    def check(self, inputs: Iterable[str], outputs: Iterable[str], states: Iterable[str]) -> None:
        check_interface(
            self.declared, inputs, outputs, self.package, states=states if self.keeps_state else None
        )


def _load_step_model(
    folder: Path,
    manifest: Manifest,
    precision: Precision,
    name: str,
    load: Callable[[_Function], StepFunction],
) -> StepFunction:
    """A step model in the form of the bundle's target. Its first function is loaded now, to check the package."""
    declared = manifest.step_models[name]
    form = package_form(declared, manifest.target)
    package = folder / package_path(precision, name)
    functions = [_Function(package, *item, form.keeps_state) for item in form.functions.items()]
    first = load(functions[0])
    return (
        first
        if len(functions) == 1
        else FunctionsByLength(declared, first, lambda chunk: load(functions[chunk]))
    )


def _load_coreml(function: _Function, precision: Precision, compute_units: str) -> StepFunction:
    try:
        predictor, compiled = load_predictor(function.package, function.name, compute_units)
    except Exception as error:  # noqa: BLE001 - coremltools raises what Core ML gives it, of any class
        raise BundleError(f"{function.package}: Core ML cannot load it ({first_line(error)})") from None
    if not compiled:
        function.check(*interface_names(predictor, function.name))
    return CoreMLStepModel(function.declared, predictor, precision, keeps_state=function.keeps_state)


def _load_portable(function: _Function, **options: Any) -> StepFunction:
    # On a Mac ONNX Runtime need not be installed.
    from voxcpm_runtime.backends.portable import PackageError, PortableStepModel

    state = {t.name: t.output_name for t in function.declared.state}
    try:
        model = PortableStepModel(function.package, function=function.name, state=state, **options)
    except (PackageError, ValueError) as error:
        raise BundleError(f"{function.package}: cannot be run here ({first_line(error)})") from None
    passed = ([], []) if function.keeps_state else (list(state), list(state.values()))
    function.check([*model.inputs, *passed[0]], [*model.outputs, *passed[1]], list(state))
    return model
