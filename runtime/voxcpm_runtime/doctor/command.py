"""`doctor`: which compute units of this machine run a bundle correctly, and how fast."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from voxcpm_constants.errors import BundleError, InputError
from voxcpm_constants.json_files import printed_json
from voxcpm_constants.manifest import check_files
from voxcpm_constants.progress_lines import status_line
from voxcpm_constants.targets import CORE_AI
from voxcpm_runtime.backends.core_ml.compute_units import (
    COMPUTE_UNITS,
    COREAI,
    PORTABLE,
    save_measured_units,
)
from voxcpm_runtime.backends.core_ml.loading import check_system
from voxcpm_runtime.backends.loading import INSTALL_PORTABLE, choose_backend
from voxcpm_runtime.backends.machine import backends
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.commands.shared_arguments import BundleArgument, PrecisionOption, Quiet
from voxcpm_runtime.doctor.report import DoctorReport, this_machine
from voxcpm_runtime.doctor.trials import endurance, trials
from voxcpm_runtime.doctor.worker import FLOORS

UNHEALTHY = 1
UNITS = {
    "coreml": ("cpu", "cpu_and_gpu", "cpu_and_ne", "all"),
    "coreai": (COREAI,),
    "portable": (PORTABLE,),
}
"""Backend -> its units, safest first."""


def doctor(
    bundle: BundleArgument = None,
    precision: PrecisionOption = None,
    backend: Annotated[str, typer.Option(help="coreml, coreai, portable, or auto: all available.")] = "auto",
    quiet: Quiet = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON without names or paths, to attach to an issue.")
    ] = False,
    timeout: Annotated[int, typer.Option(help="Timeout in seconds per step model and unit.", min=1)] = 120,
    minutes: Annotated[
        float, typer.Option(help="Minutes to then run the chosen units (Core ML).", min=0, max=1440)
    ] = 0.0,
) -> None:
    """Check and time every step model on every compute unit, and choose the fastest correct one."""
    opened = open_bundle(bundle, precision)
    units, refusal = _units(opened, backend)
    if not units:
        raise InputError(
            "no backend is installed: expected Core ML (macOS with coremltools) or ONNX Runtime; install it with: "
            f"{INSTALL_PORTABLE}"
        )
    if minutes and not set(units) & COMPUTE_UNITS.keys():
        raise InputError(
            f"--minutes needs Core ML's compute units, but only {', '.join(units)} is available: leave it out"
        )
    check_files(opened.folder, opened.manifest.vector_files(), digests=True)
    with status_line("starting …", shown=not (quiet or as_json)) as note:

        def on_start(name: str, unit: str) -> None:
            note(f"{name} on {unit} …")

        names = tuple(opened.manifest.step_models)
        found = [t for unit in units for t in trials(opened, unit, names, limit=timeout, on_start=on_start)]
        endurance_trials = (
            list(endurance(opened, found, minutes, limit=timeout, on_start=on_start)) if minutes else []
        )
    report = DoctorReport(opened, found, refusal, endurance_trials)
    saved = _save_choice(report)
    if as_json:
        typer.echo(printed_json(report.document(saved=saved)))
    else:
        _show(report)
    if not report.healthy:
        raise typer.Exit(UNHEALTHY)


def _units(bundle: Bundle, backend: str) -> tuple[tuple[str, ...], str]:
    """The units to try, and why Core ML's are left out, if the bundle needs a newer system.

    Raises InputError for an unusable backend, and BundleError if only Core ML is available and needs a newer system.
    """
    choose_backend(backend, bundle)
    core_ai = bundle.manifest.target == CORE_AI
    names = [name for name in backends() if backend in ("auto", name) and (name == "coreai") == core_ai]
    refusal = ""
    if "coreml" in names:
        try:
            check_system(bundle)
        except BundleError as error:
            names.remove("coreml")
            if not names:
                raise
            refusal = str(error)
    return tuple(unit for name in names for unit in UNITS[name]), refusal


def _save_choice(report: DoctorReport) -> bool:
    """Save the choice for `--compute-units auto`, if Core ML was tried. Returns whether it was saved."""
    units = {name: trial.unit for name, trial in report.chosen.items()}
    if units and any(trial.unit in COMPUTE_UNITS for trial in report.trials):
        with contextlib.suppress(OSError):
            save_measured_units(report.bundle.digest, units)
            return True
    return False


def _show(report: DoctorReport) -> None:
    here, bundle, manifest = this_machine(), report.bundle, report.bundle.manifest
    libraries = ", ".join(f"{name} {installed or 'absent'}" for name, installed in here["libraries"].items())
    floor = f"correct if the correlation is at least {FLOORS[bundle.precision]:g}"
    judged = floor if manifest.vector_files() else "no test vectors"
    generation = manifest.architecture.generation
    typer.echo(
        f"machine   {here['chip']}, {here['processors']} processors\n"
        f"system    {here['system']} ({here['build']}), {here['architecture']}\n"
        f"software  Python {here['python']}, {libraries}\n"
        f"backends  {', '.join(here['backends'])}\n"
        f"bundle    {generation}, {bundle.precision}, {manifest.target}, {judged}\n"
    )
    row = "{:<18} {:<12} {:>6} {:>8} {:>11} {:>8}  {}".format
    typer.echo(row("step model", "unit", "load s", "call ms", "correlation", "call 12", "outcome"))
    for trial in sorted(report.trials, key=lambda trial: list(manifest.step_models).index(trial.step_model)):
        chosen = " *" if report.chosen.get(trial.step_model) == trial else ""
        typer.echo(
            row(
                trial.step_model,
                trial.unit,
                "" if trial.load_seconds is None else f"{trial.load_seconds:.1f}",
                "" if trial.call_seconds is None else f"{1e3 * trial.call_seconds:.1f}",
                "" if trial.agreement is None else f"{trial.agreement.worst:.5f}",
                "" if trial.agreement is None else f"{trial.agreement.chain[-1]:.5f}",
                f"{trial.outcome}{chosen}",
            )
        )
    typer.echo("")
    for sentence in report.advice():
        typer.echo(sentence)
