"""Chooses a backend, and loads the step models of a bundle."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version as package_version
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from voxcpm_constants.errors import BundleError, InputError, first_line, warn
from voxcpm_constants.macos import macos
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import BASE_LM_STEP, LOCDIT_SOLVE, STEP_MODEL_NAMES, Precision
from voxcpm_constants.targets import CORE_AI, updated_name
from voxcpm_runtime.argument_types import wrong_type
from voxcpm_runtime.backends.core_ml.compute_units import (
    AUTO,
    COREAI,
    PORTABLE,
    ComputeUnits,
    chosen_units,
    is_auto,
)
from voxcpm_runtime.backends.core_ml.loading import Note, PlacedStepModel, check_system, place_on_core_ml
from voxcpm_runtime.backends.machine import backends, cores
from voxcpm_runtime.backends.packages import PackageFunction, open_step_model
from voxcpm_runtime.backends.step_function import StepFunction
from voxcpm_runtime.bundle.opening import Bundle

Backend = Literal["auto", "coreml", "coreai", "portable"]
BACKENDS: tuple[Backend, ...] = ("auto", "coreml", "coreai", "portable")
Chosen = Literal["coreml", "coreai", "portable"]
"""A backend, "auto" resolved."""

INSTALL_PORTABLE = 'pip install "onnx>=1.17" "onnxruntime>=1.22"'
"""Installs the portable backend, which is no dependency of the runtime on a Mac."""


def check_engine(
    backend: str, threads: int | None, compute_units: ComputeUnits, bundle: Bundle | None = None
) -> Chosen:
    """Check these arguments, and return the backend. bundle: None before it is opened.

    Raises InputError for a wrong argument or combination.
    """
    chosen = choose_backend(backend, bundle)
    # Core ML ignores `threads`, but the portable backend may be its fallback.
    whole = isinstance(threads, Integral) and not isinstance(threads, bool)
    if threads is not None and not (whole and 1 <= threads <= cores()):
        expected = f"a whole number from 1 to {cores()} (the cores that this process may use)"
        raise wrong_type(threads, "threads", expected)
    if compute_units != AUTO:
        chosen_units(compute_units, (*STEP_MODEL_NAMES, LOCDIT_SOLVE))
        if chosen == "coreai":
            raise InputError("compute units are for Core ML only; leave them out")
    return chosen


def choose_backend(backend: str, bundle: Bundle | None = None) -> Chosen:
    """The backend on this machine, with "auto" resolved. bundle: None before it is opened.

    Raises InputError for a backend that does not run here, or that cannot run the bundle.
    """
    if backend not in BACKENDS:
        raise wrong_type(backend, "backend", f"one of {', '.join(BACKENDS)}")
    on_mac = macos() is not None
    if backend == "coreml" and not on_mac:
        raise InputError(
            f"backend coreml needs macOS, but this is {sys.platform}; use --backend portable (or auto)"
        )
    if backend != "auto":
        chosen: Chosen = backend
    elif bundle is not None and bundle.manifest.target == CORE_AI:
        chosen = "coreai"
    else:
        chosen = "coreml" if on_mac else "portable"
    if bundle is not None and (chosen == "coreai") != (bundle.manifest.target == CORE_AI):
        raise InputError(
            f"{bundle.folder}: backend {chosen} cannot run bundles for {bundle.manifest.target.lower()}; "
            "use --backend auto, or convert with another --target"
        )
    if chosen == "coreai":
        from voxcpm_runtime.backends.core_ai.step_model import check_installed

        check_installed()
    return chosen


def load_step_models(bundle: Bundle, backend: Backend = "auto", **options: Any) -> dict[str, StepFunction]:
    """Step models of an open bundle by name. Arguments, warnings and errors: see `place_step_models`."""
    return {name: placed.model for name, placed in place_step_models(bundle, backend, **options).items()}


def place_step_models(
    bundle: Bundle,
    backend: Backend = "auto",
    *,
    names: Iterable[str] | None = None,
    threads: int | None = None,
    compute_units: ComputeUnits = AUTO,
    first_use: Note | None = lambda _: None,
) -> dict[str, PlacedStepModel]:
    """Step models of an open bundle, in its precision, with the unit of each one.

    names: by default all. threads: per operation. compute_units: see `chosen_units` (Core ML only). With backend
    "auto", packages that Core ML rejects fall back to another unit or the portable backend, with a warning, unless the
    caller chose the unit. first_use (Core ML only): called with a progress line before a child process compiles a
    package or first loads it, for minutes; None to do both in this process.

    Raises InputError for a wrong argument, BundleError for a package that cannot be loaded.
    """
    chosen = check_engine(backend, threads, compute_units, bundle)
    source = (bundle.folder, bundle.manifest, bundle.precision)
    selected = tuple(bundle.manifest.step_models if names is None else names)
    if chosen == "coreai":
        from voxcpm_runtime.backends.core_ai.worker import CoreAIWorker

        models = CoreAIWorker(bundle.folder, bundle.precision, selected).step_models
        return {name: PlacedStepModel(models[name], COREAI) for name in selected}
    portable = partial(load_portable_step_model, *source, threads=threads)
    has_fallback = chosen == "coreml" and backend == "auto" and PORTABLE in backends()
    if chosen == "coreml":
        try:
            check_system(bundle)
        except BundleError as error:
            if not has_fallback or not all(is_auto(compute_units, name) for name in selected):
                raise
            warn(f"{error}; using the portable backend")
            chosen = "portable"
    if chosen == "portable":
        return _load_in_parallel(selected, portable)
    install = f"install the portable backend: {INSTALL_PORTABLE}"
    advice = "" if has_fallback else install if backend == "auto" else "try --backend portable"
    fallback = portable if has_fallback else None
    return place_on_core_ml(bundle, selected, compute_units, first_use, fallback, advice)


def load_portable_step_model(
    folder: Path, manifest: Manifest, precision: Precision, name: str, **options: Any
) -> StepFunction:
    """One step model on ONNX Runtime. options: of `portable.PortableStepModel`.

    The first function of each package is loaded immediately, the others on their first call. Raises BundleError.
    """
    # ONNX Runtime is optional on a Mac.
    from voxcpm_runtime.backends.portable import PortableStepModel

    def load(key: str, functions: Sequence[PackageFunction], index: int) -> StepFunction:
        function = functions[index]
        if function.state == "native":  # an input and an output of the lowered function
            function = function._replace(state="passed")
        state = {t.name: updated_name(t, function.state) for t in function.declared.state}
        try:
            model = PortableStepModel(
                function.package, cache_key=key, function=function.name, state=state,
                returns_rows=function.state == "rows", **options,
            )  # fmt: skip
        except (BundleError, ValueError) as error:
            raise BundleError(f"{function.package}: cannot be run here ({first_line(error)})") from None
        function.check([*model.inputs, *state], [*model.outputs, *state.values()], ())
        return model

    return open_step_model(
        folder, manifest, precision, name, lambda _, functions, key: partial(load, key, functions)
    )


def _load_in_parallel(
    names: Sequence[str], load: Callable[[str], StepFunction]
) -> dict[str, PlacedStepModel]:
    """Load portable step models in parallel: each uses one core, without the GIL."""
    order = sorted(names, key=BASE_LM_STEP.__ne__)  # The slowest first.
    with ThreadPoolExecutor(os.cpu_count()) as opening:
        loaded = dict(zip(order, opening.map(load, order), strict=True))
    return {name: PlacedStepModel(loaded[name], PORTABLE) for name in names}


def arithmetic_key(units: Mapping[str, str]) -> str:
    """A cache key, equal if the same step models give the same results, up to rounding by the number of threads.

    units: the unit of every step model by name (`place_step_models`).
    """
    running, version = set(units.values()), ""
    if running == {COREAI}:
        return f"{COREAI} {package_version('coreai-core')}"
    if PORTABLE in running:
        # ONNX Runtime is optional on a Mac.
        from voxcpm_runtime.backends.portable.cache import LOWERING_VERSION
        from voxcpm_runtime.backends.portable.sessions import has_exact_signed_products

        version = f" {LOWERING_VERSION}{' signed' if has_exact_signed_products() else ''}"
    if running == {PORTABLE}:
        return f"{PORTABLE}{version}"
    return f"coreml{version} {','.join(f'{name}={unit}' for name, unit in sorted(units.items()))}"
