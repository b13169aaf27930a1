"""A whole examination: every step model on every compute unit of the available backends."""

from __future__ import annotations

from voxcpm_constants.errors import BundleError, InputError
from voxcpm_constants.macos import macos
from voxcpm_constants.manifest import check_files
from voxcpm_constants.targets import CORE_AI
from voxcpm_constants.vectors import read_vectors
from voxcpm_runtime.backends.choice import choose_backend
from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS, COREAI, PORTABLE
from voxcpm_runtime.backends.core_ml.loading import check_system
from voxcpm_runtime.backends.loading import INSTALL_PORTABLE
from voxcpm_runtime.backends.machine import backends
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.doctor.report import Report, report_of
from voxcpm_runtime.doctor.trials import Begun, endurance, placed, trials

UNITS = {
    "coreml": ("cpu", "cpu_and_gpu", "cpu_and_ne", "all"),
    "coreai": (COREAI,),
    "portable": (PORTABLE,),
}
"""Backend -> its units in order, the safest first."""


def units_here(backend: str, bundle: Bundle | None = None) -> tuple[str, ...]:
    """The units to try with a backend; with "auto", those of every available backend that runs the bundle.

    bundle: None before it is open. Raises InputError for an unknown backend, for one that does not run the bundle, and
    for Core ML without macOS.
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
    """Try every step model of an open bundle. limit: seconds for one step model on one unit. minutes: length of a
    further trial of the chosen units of Core ML; 0 for none.

    Raises BundleError, naming the file, for altered test vectors, and if only Core ML is available and needs a newer
    system; InputError if no available backend runs the bundle.
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
            f"--minutes is for Core ML's compute units, and only {', '.join(units)} is available: leave it out"
        )
    refusal = ""
    try:
        # Core AI has its own runtime for systems before macOS 27.
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
    "no backend is installed: expected Core ML (macOS with coremltools) or ONNX Runtime; install it with: "
    f"{INSTALL_PORTABLE}"
)
