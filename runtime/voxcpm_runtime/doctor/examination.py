"""A whole examination: every step model on every compute unit of the backends that are here."""

from __future__ import annotations

from voxcpm_constants.errors import BundleError, InputError
from voxcpm_constants.macos import macos
from voxcpm_constants.manifest import check_files
from voxcpm_constants.targets import CORE_AI
from voxcpm_constants.vectors import read_vectors
from voxcpm_runtime.backends.choice import choose_backend
from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS, COREAI, PORTABLE
from voxcpm_runtime.backends.core_ml.loading import check_system
from voxcpm_runtime.backends.fallback import INSTALL_PORTABLE
from voxcpm_runtime.backends.machine import backends
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.doctor.endurance import endurance
from voxcpm_runtime.doctor.report import Report, report_of
from voxcpm_runtime.doctor.trials import Begun, placed, trials

UNITS = {
    "coreml": ("cpu", "cpu_and_gpu", "cpu_and_ne", "all"),
    "coreai": (COREAI,),
    "portable": (PORTABLE,),
}
"""Backend -> the units that are tried, the safest first."""


def units_here(backend: str, bundle: Bundle | None = None) -> tuple[str, ...]:
    """The units to try with a backend; with "auto", those of every backend that is here and runs the bundle.

    bundle: None as long as it is not open. Raises InputError for an unknown backend, for one that does not run the
    bundle, and for Core ML off the Mac.
    """
    choose_backend(backend, bundle)
    asked = [name for name in backends() if backend in ("auto", name)]
    if bundle is not None:
        core_ai = bundle.manifest.target == CORE_AI
        asked = [name for name in asked if (name == "coreai") == core_ai]
    return tuple(unit for name in asked for unit in UNITS[name])


def examine(
    bundle: Bundle,
    backend: str,
    *,
    limit: float,
    minutes: float = 0.0,
    begun: Begun = lambda name, unit: None,
) -> Report:
    """Try every step model of an open bundle. limit: seconds for one step model on one unit. minutes: of a further
    trial of the chosen units of Core ML; 0 for none.

    Raises BundleError, naming the file, for test vectors that were altered, BundleError where Core ML alone is here and
    needs a newer system, and InputError where no backend is here that runs the bundle.
    """
    units = units_here(backend, bundle)
    check_files(bundle.folder, bundle.manifest.vector_files(), digests=True)
    if bundle.manifest.vector_files():
        for declared in bundle.manifest.step_models.values():
            read_vectors(bundle.folder, declared, bundle.manifest.sizes)
    if not units:
        raise InputError(NO_BACKEND)
    if minutes and not set(units) & COMPUTE_UNITS.keys():
        raise InputError(
            f"--minutes tries Core ML's compute units, and here are {', '.join(units)}: leave it out"
        )
    refusal = ""
    try:
        # Core AI brings a runtime for systems before macOS 27.
        if bundle.manifest.target != CORE_AI:
            check_system(bundle.folder, bundle.manifest.target, macos())
    except BundleError as error:
        units = tuple(unit for unit in units if unit not in COMPUTE_UNITS)
        if not units:
            raise
        refusal = str(error)
    names = tuple(bundle.manifest.step_models)
    found = [trial for unit in units for trial in trials(bundle, unit, names, limit=limit, begun=begun)]
    found = placed(bundle, found, limit=limit)
    lasted = endurance(bundle, found, minutes, limit=limit, begun=begun) if minutes else []
    return report_of(bundle, found, refusal, lasted)


NO_BACKEND = (
    "no backend is here: expected Core ML (macOS with coremltools) or ONNX Runtime; install it with: "
    f"{INSTALL_PORTABLE}"
)
