"""Loads packages on their compute units or a fallback, compiled for Core ML first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from voxcpm_constants.core_ml_errors import core_ml_reason
from voxcpm_constants.errors import BundleError, warn
from voxcpm_constants.macos import macos
from voxcpm_constants.step_models import StepModel
from voxcpm_constants.targets import MAIN, MIN_MACOS
from voxcpm_runtime.backends.compilation import CompiledPackage, mark
from voxcpm_runtime.backends.core_ml import child
from voxcpm_runtime.backends.core_ml.compute_units import (
    COMPUTE_UNITS,
    CPU,
    PORTABLE,
    ComputeUnits,
    chosen_units,
    is_auto,
    measured_units,
)
from voxcpm_runtime.backends.core_ml.step_model import CoreMLStepModel
from voxcpm_runtime.backends.machine import build
from voxcpm_runtime.backends.packages import PackageFunction, open_step_model
from voxcpm_runtime.backends.step_function import StepFunction
from voxcpm_runtime.bundle.opening import Bundle

Note = Callable[[str], object]
"""note(line): a progress line."""
LoadPortable = Callable[[str], StepFunction]

_COMPILED = ".mlmodelc"
# Core ML's message for a package of several functions that it rejects for another reason (VoxCPMANE 14 and 15).
_MISLEADING = ".functionName"


class PlacedStepModel(NamedTuple):
    """A step model, and the compute unit that it runs on; PORTABLE for the portable backend."""

    model: StepFunction
    unit: str


class RejectedError(BundleError):
    """A package that Core ML rejects on a compute unit, with its reason; another unit may accept it."""


def check_system(bundle: Bundle) -> None:
    """Raises BundleError for a bundle whose target is newer than this system."""
    min_macos, system = MIN_MACOS[bundle.manifest.target], macos()
    if system is not None and system.version[0] < min_macos:
        raise BundleError(
            f"{bundle.folder}: this bundle needs macOS {min_macos} or newer, but this is {system}; "
            "convert it with --target macos14, or update macOS"
        )


def place_on_core_ml(
    bundle: Bundle,
    names: Iterable[str],
    requested: ComputeUnits,
    first_use: Note | None,
    portable: LoadPortable | None,
    advice: str,
) -> dict[str, PlacedStepModel]:
    """Step models on their compute units. Raises BundleError.

    portable: loads what all units reject, for units left to "auto"; None to fail. advice: appended to that error.
    """
    measured = measured_units(bundle.digest)
    if portable is None:
        # The portable backend may have been uninstalled since.
        measured = {name: unit for name, unit in measured.items() if unit != PORTABLE}
    units = chosen_units(requested, bundle.manifest.step_models, measured)
    fallbacks = (CPU,) if portable is None else (CPU, PORTABLE)

    def load(name: str, unit: str) -> StepFunction:
        if unit == PORTABLE and portable is not None:
            return portable(name)
        opened = partial(_open_package, unit, first_use)
        return open_step_model(bundle.folder, bundle.manifest, bundle.precision, name, opened)

    def placed(name: str) -> PlacedStepModel:
        auto = is_auto(requested, name)
        candidates = tuple(dict.fromkeys((units[name], *(fallbacks if auto else ()))))
        rejections: list[BundleError] = []
        for unit in candidates:
            try:
                model = load(name, unit)
            except BundleError as error:
                rejections.append(error)
                continue
            if rejections:
                warn(
                    f"{name} falls back from {' and '.join(candidates[: len(rejections)])} to {unit} "
                    f"({rejections[0]}); voxcpm-coreml doctor finds the best unit on this machine"
                )
            return PlacedStepModel(model, unit)
        if auto:
            tried = f"tried {', '.join(candidates)}"
            raise BundleError("; ".join(filter(None, (str(rejections[0]), tried, advice))))
        if not isinstance(rejections[0], RejectedError):
            raise rejections[0]
        instead = "" if units[name] == CPU else f"--compute-units {name}={CPU} or "
        raise BundleError(f"{rejections[0]}; try {instead}--backend portable")

    return {name: placed(name) for name in names}


def _open_package(
    unit: str, first_use: Note | None, _: StepModel, functions: Sequence[PackageFunction], digest: str
) -> Callable[[int], StepFunction]:
    """Load all functions eagerly, so that a rejection is not an error in the middle of speech."""
    package = functions[0].package
    form = CompiledPackage(package, digest, partial(_compile, functions, first_use), f"{build()}{_COMPILED}")

    def predictors(compiled: Path, unit: str) -> list[Any]:
        return [_load(form, compiled, function, unit, first_use) for function in functions]

    def is_intact(compiled: Path) -> bool:
        """Whether the CPU loads the compiled form, so that it is the compute unit that rejects it."""
        try:
            return unit != CPU and bool(predictors(compiled, CPU))
        except Exception:  # noqa: BLE001 - coremltools raises any class
            return False

    for compiled, is_new in _forms(package, form):
        try:
            loaded = predictors(compiled, unit)
        except Exception as error:  # noqa: BLE001, PERF203 - coremltools raises any class
            if is_new or is_intact(compiled):
                raise _rejection(package, unit, error) from None
        else:
            declared = zip(functions, loaded, strict=True)
            models = [CoreMLStepModel(f.declared, p, state=f.state, package=form) for f, p in declared]
            return models.__getitem__
    raise AssertionError("the last form is new")


def _forms(package: Path, form: CompiledPackage) -> Iterator[tuple[Path, bool]]:
    """Yield compiled forms, and whether each was just compiled; a damaged one is recompiled once."""
    if (shipped := package.with_suffix(_COMPILED)).is_dir():
        yield shipped, False
    try:
        path, is_new = form.path()
        before = mark(path)
        yield path, is_new
        yield form.path(damaged=before)[0], True
    except BundleError:
        raise
    except Exception as error:  # noqa: BLE001 - coremltools raises any class
        raise BundleError(f"{package}: Core ML cannot compile it ({core_ml_reason(error)})") from None


def _load(
    form: CompiledPackage, compiled: Path, function: PackageFunction, unit: str, first_use: Note | None
) -> Any:
    """coremltools' model of a function; on first use a child process loads it first (minutes)."""
    # The default function is loaded without its name, which is not supported before macOS 15.
    name = "" if function.name == MAIN else function.name
    # Speech uses only the shortest length after the prefill. coremltools rejects the hint before macOS 15.
    system = macos()
    enumerated = function.declared.chunk_count > 1 and system is not None and system.version >= (15,)
    reshapes = "Infrequent" if enumerated else ""
    apples_unit = COMPUTE_UNITS[unit]
    if first_use is not None:

        def in_child() -> None:
            first_use(f"Core ML prepares {function.package.stem} for {unit}, once …")
            child.run("load", compiled, apples_unit, name, reshapes)

        form.before_first_load(compiled, f"{function.name}.{unit}", in_child)
    return child.load_model(compiled, apples_unit, name, reshapes)


def _rejection(package: Path, unit: str, error: Exception) -> RejectedError:
    words = core_ml_reason(error)
    if _MISLEADING in words:
        words = (
            "the package is too large, or the system rejects one of its functions, although Core ML reports "
            f"{_MISLEADING}"
        )
    return RejectedError(f"{package}: Core ML rejects it on {unit} ({words})")


def _compile(
    functions: Sequence[PackageFunction], first_use: Note | None, package: Path, compiled: Path
) -> None:
    """Compile a package of these functions. Raises BundleError unless its tensors have the declared names."""
    import coremltools as ct  # takes seconds, and only exists on a Mac

    description = ct.utils.load_spec(str(package)).description
    for function in functions:
        # A package with one function describes it as the model itself.
        described = next((f for f in description.functions if f.name == function.name), description)
        function.check(*([t.name for t in ts] for ts in (described.input, described.output, described.state)))
    if first_use is None:
        child.compile_package(package, compiled)
        return
    first_use(f"Core ML compiles {package.stem}, once …")
    child.run("compile", package, str(compiled.absolute()))
