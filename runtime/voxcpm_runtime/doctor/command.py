"""`doctor`: which compute units of this machine run a bundle, how fast, and how correctly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from voxcpm_constants.errors import InputError, os_reason
from voxcpm_constants.user_folders import CACHE_VARIABLE
from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS, save_measured_units
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.commands.shared_arguments import BundleArgument
from voxcpm_runtime.commands.status_line import status_line
from voxcpm_runtime.doctor.anonymous import anonymous
from voxcpm_runtime.doctor.examination import NO_BACKEND, examine, units_here
from voxcpm_runtime.doctor.report import Machine, Report, this_machine
from voxcpm_runtime.doctor.trials import Trial

UNHEALTHY = 1


def doctor(
    bundle: BundleArgument = None,
    precision: Annotated[
        str | None,
        typer.Option(help="int8, int4, fp16 or fp32. Default: the first of these that the bundle has."),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(help="coreml, coreai, portable, or auto: every available backend that runs the bundle."),
    ] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON without names and paths, for an issue.")
    ] = False,
    timeout: Annotated[
        int, typer.Option(help="Seconds for one step model on one compute unit.", min=1)
    ] = 120,
    minutes: Annotated[
        float,
        typer.Option(
            help="Afterwards call all step models on their chosen units for this long (Core ML).",
            min=0,
            max=1440,
        ),
    ] = 0.0,
) -> None:
    """Try every step model on every compute unit: whether it is correct, how fast it is, and which is best."""
    console = Console(highlight=False, markup=False, emoji=False)
    opened = open_bundle(bundle, precision) if units_here(backend) else None
    if opened is None or not units_here(backend, opened):
        _show_machine(console, this_machine(), as_json=as_json)
        raise InputError(NO_BACKEND)
    with status_line("the test vectors …", shown=not as_json) as note:
        report = examine(
            opened,
            backend,
            limit=timeout,
            minutes=minutes,
            begun=lambda name, unit: note(f"{name} on {unit} …"),
        )
    saved = _saved(opened, report)
    if as_json:
        typer.echo(json.dumps(_document(opened, report, saved=saved), indent=1, ensure_ascii=False))
    else:
        _show(console, report)
    if not report.healthy:
        raise typer.Exit(UNHEALTHY)


def _saved(bundle: Bundle, report: Report) -> bool:
    """Save the choice for `--compute-units auto`, if Core ML was tried. Returns whether it was saved; a folder that
    cannot be written is a warning.
    """
    units = {name: trial.unit for name, trial in report.chosen.items()}
    if not units or not any(trial.unit in COMPUTE_UNITS for trial in report.trials):
        return False
    try:
        save_measured_units(bundle.digest, units)
    except OSError as error:
        typer.echo(
            f"warning: the choice cannot be saved ({os_reason(error)}); "
            f"set {CACHE_VARIABLE} to a folder that can be written",
            err=True,
        )
        return False
    return True


def _document(bundle: Bundle, report: Report, *, saved: bool) -> Any:
    """The report for `--json`, without names and paths."""
    document = report.model_dump(mode="json")
    document["chosen"] = {name: trial.unit for name, trial in report.chosen.items()}
    document |= {"saved": saved, "advice": report.advice()}
    return anonymous(document, [bundle.folder])


def _show(console: Console, report: Report) -> None:
    _show_machine(console, report.machine)
    about = report.bundle
    judged = f"correct from a correlation of {report.floor:g} on" if about.judged else "without test vectors"
    console.print(f"bundle    {about.generation}, {about.precision}, {about.target}, {judged}")
    console.print("", _table(report), "", sep="\n")
    for sentence in report.advice():
        console.print(sentence)


def _show_machine(console: Console, machine: Machine, *, as_json: bool = False) -> None:
    if as_json:
        typer.echo(json.dumps(anonymous({"machine": machine.model_dump(mode="json")}, []), indent=1))
        return
    libraries = ", ".join(f"{name} {installed or 'absent'}" for name, installed in machine.libraries.items())
    console.print(f"machine   {machine.chip}, {machine.processors} processors")
    console.print(f"system    {machine.system} ({machine.build}), {machine.architecture}")
    console.print(f"software  Python {machine.python}, {libraries}")
    console.print(f"backends  {', '.join(machine.backends) or 'none'}")


def _table(report: Report) -> Table:
    """A row for each trial, step model by step model; a star marks the fastest correct one."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, justify in _COLUMNS.items():
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for name in report.step_models:
        shown = name
        for trial in report.trials:
            if trial.step_model == name:
                table.add_row(shown, *_cells(trial, best=report.chosen.get(name) == trial))
                shown = ""
    return table


_COLUMNS = {
    "step model": "left",
    "unit": "left",
    "load s": "right",
    "call ms": "right",
    "correlation": "right",
    "call 12": "right",
    "outcome": "left",
}


def _cells(trial: Trial, *, best: bool) -> Iterator[str]:
    agreement = trial.agreement
    yield trial.unit
    yield "" if trial.load_seconds is None else f"{trial.load_seconds:.1f}"
    yield "" if trial.call_seconds is None else f"{1e3 * trial.call_seconds:.1f}"
    yield "" if agreement is None else f"{agreement.worst:.5f}"
    yield "" if agreement is None else f"{agreement.chain[-1]:.5f}"
    devices = ", ".join(f"{count} on {device}" for device, count in (trial.operations or {}).items())
    yield f"{trial.outcome}{' *' if best else ''}{f' ({devices})' if devices else ''}"
