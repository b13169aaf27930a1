"""From a step model's package to Core ML's functions, and what Core ML says when it refuses one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from voxcpm_constants.errors import BundleError, core_ml_reason
from voxcpm_constants.macos import MacOS, macos
from voxcpm_constants.targets import OLDEST_MACOS, Target
from voxcpm_runtime.backends.compiled_packages import CompiledPackage, mark
from voxcpm_runtime.backends.core_ml.child import compile_package, in_child, load_function
from voxcpm_runtime.backends.core_ml.compute_units import CPU
from voxcpm_runtime.backends.core_ml.step_model import CoreMLStepModel
from voxcpm_runtime.backends.package_functions import PackageFunction

Note = Callable[[str], object]
"""note(line): what is being done, for a user who waits."""

# Core ML says this of a package of several functions that it refuses for another reason (VoxCPMANE 14 and 15).
_MISLEADING = ".functionName"


def check_system(folder: Path, target: Target, system: MacOS | None) -> None:
    """Raises BundleError for a bundle whose target is newer than this system."""
    oldest = OLDEST_MACOS[target]
    if system is not None and system.version[0] < oldest:
        raise BundleError(
            f"{folder}: this bundle needs macOS {oldest} or newer, and this is {system}; "
            "convert it with --target macos14, or update macOS"
        )


def load_functions(
    functions: Sequence[PackageFunction], digest: str, unit: str, first_use: Note | None
) -> list[CoreMLStepModel]:
    """All functions of a package on Core ML. digest: identifies the package. unit: a key of COMPUTE_UNITS.

    first_use: called with a line whenever a child process begins what takes minutes: it compiles the package, or loads
    it on a unit for the first time; None to do so in this process. All functions are loaded at once, so that a refusal
    is an error now and not in the middle of speech. Raises BundleError, as a RefusedError what another unit may take.
    """
    package = _Package(functions, digest, unit, first_use)
    return [CoreMLStepModel(f.declared, package.load(f), state=f.state, package=package) for f in functions]


class RefusedError(BundleError):
    """A package that Core ML refuses on a compute unit, in Core ML's words; another unit may take it."""


class _Package:
    """A package that Core ML loads for one compute unit, compiled before."""

    def __init__(
        self, functions: Sequence[PackageFunction], digest: str, unit: str, first_use: Note | None
    ) -> None:
        self._functions = functions
        self._path = functions[0].package
        self._unit = unit
        self._first_use = first_use
        self._compiled = CompiledPackage(self._path, digest, partial(_compile, functions, first_use))

    def load(self, function: PackageFunction) -> Any:
        """coremltools' model of one function. A compiled form that is damaged is made again once."""
        if (shipped := self._compiled.shipped) is not None:
            try:
                return self._loaded(shipped, function, self._unit)
            except Exception as error:  # noqa: BLE001 - coremltools raises what Core ML gives it, of any class
                if self._loads_on_cpu(shipped, function):
                    raise self._refused(error) from None
        path, new = self._compiled_path()
        before = mark(path)
        try:
            return self._loaded(path, function, self._unit)
        except Exception as error:  # noqa: BLE001 - coremltools raises any class
            if new or self._loads_on_cpu(path, function):
                raise self._refused(error) from None
        path, _ = self._compiled_path(damaged=before)
        try:
            return self._loaded(path, function, self._unit)
        except Exception as error:  # noqa: BLE001 - coremltools raises any class
            raise self._refused(error) from None

    def _loaded(self, compiled: Path, function: PackageFunction, unit: str) -> Any:
        # The only function of a package is loaded without its name: systems before macOS 15 know no names.
        name = function.name if len(self._functions) > 1 else ""
        # Speech keeps to the shortest length after the prefill. coremltools refuses the hint before macOS 15.
        system = macos()
        enumerated = function.declared.chunk_count > 1 and system is not None and system.version >= (15,)
        reshapes, use = "Infrequent" if enumerated else "", f"{function.name}.{unit}"
        if self._first_use is not None and not self._compiled.loaded_before(compiled, use):
            self._first_use(f"Core ML prepares {self._path.stem} for {unit}, once …")
            in_child("load", str(compiled.absolute()), unit, name, reshapes)
            self._compiled.record_load(compiled, use)
        return load_function(compiled, unit, name, reshapes)

    def _loads_on_cpu(self, compiled: Path, function: PackageFunction) -> bool:
        """Whether the compiled form is whole: then it is the compute unit that refuses it."""
        if self._unit == CPU:
            return False
        try:
            self._loaded(compiled, function, CPU)
        except Exception:  # noqa: BLE001 - coremltools raises any class
            return False
        return True

    def _compiled_path(self, damaged: int | None = None) -> tuple[Path, bool]:
        try:
            return self._compiled.path(damaged)
        except BundleError:
            raise
        except Exception as error:  # noqa: BLE001 - coremltools raises any class
            raise BundleError(f"{self._path}: Core ML cannot compile it ({core_ml_reason(error)})") from None

    def _refused(self, error: Exception) -> RefusedError:
        words = core_ml_reason(error)
        if _MISLEADING in words:
            words = (
                "the package is too large for it, or the system refuses one of the functions, though Core ML speaks of "
                f"{_MISLEADING}"
            )
        return RefusedError(f"{self._path}: Core ML refuses it on {self._unit} ({words})")


def _compile(
    functions: Sequence[PackageFunction], first_use: Note | None, package: Path, compiled: Path
) -> None:
    """Compile a package of these functions. Raises BundleError if they are not the package's."""
    import coremltools as ct  # seconds, and on a Mac only

    description = ct.utils.load_spec(str(package)).description
    for function in functions:
        function.check(*_interface_names(description, function.name))
    if first_use is None:
        compile_package(package, compiled)
        return
    first_use(f"Core ML compiles {package.stem}, once …")
    in_child("compile", str(package.absolute()), str(compiled.absolute()))


def _interface_names(description: Any, function: str) -> tuple[list[str], list[str], list[str]]:
    """Names of a function's inputs, outputs and states."""
    # A package with one function describes it as the model itself.
    described = next((f for f in description.functions if f.name == function), description)
    return (
        [t.name for t in described.input],
        [t.name for t in described.output],
        [t.name for t in described.state],
    )
