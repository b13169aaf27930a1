"""The command `voxcpm-coreml validate --golden`: the examination of a bundle, printed as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import Precision
from voxcpm_runtime.backends.choice import Backend
from voxcpm_runtime.bundle.opening import choose_precision, locate_bundle
from voxcpm_runtime.commands.status_line import status_line
from voxcpm_validation.golden.examination import Examination, examine
from voxcpm_validation.golden.record import RECORDS, Comparison, compare, read_records

HEADER = ("case", "samples", "RMS, peak dBFS", "silence", "again", "record")


def check_golden(
    bundle: str | None,
    precisions: Sequence[str],
    backend: Backend,
    *,
    record: bool = False,
    records: Path | None = None,
) -> None:
    """Examine a bundle in the given precisions, or in all that it has, and print the results.

    record: write new records instead of comparing with the existing ones. records: folder of records.

    Raises typer.Exit(1) if anything differs, InputError and BundleError.
    """
    folder = locate_bundle(bundle, precisions[0] if precisions else None)
    manifest = Manifest.read(folder)
    chosen: list[Precision] = [choose_precision(folder, manifest, p) for p in precisions]
    known = () if record else read_records(_existing(records))
    console, out = Console(stderr=True), Console()
    with status_line("") as note:
        examinations = [
            examine(folder, precision, backend, report=note) for precision in chosen or manifest.precisions
        ]
    table, lines, failures = Table(*HEADER), [], []
    for examination in examinations:
        comparison = compare(examination.record, known)
        for name in examination.record.cases:
            table.add_row(*_row(examination, name, comparison))
            found = (*examination.failures[name], *comparison.differences[name])
            failures += [f"{examination.record.key.precision} {name}: {line}" for line in found]
        lines.append(
            _written(examination, records or RECORDS) if record else _compared(examination, comparison)
        )
    out.print(table)
    for line in lines:
        console.print(line, soft_wrap=True)
    for line in failures:
        console.print(f"[red]differs:[/red] {line}", soft_wrap=True)
    out.print("Samples or figures differ." if failures else "Everything that can be compared is the same.")
    if failures:
        raise typer.Exit(1)


def _existing(records: Path | None) -> Path:
    if records is not None and not records.is_dir():
        raise InputError(f"--records {records}: no such folder; make it with --record")
    return records or RECORDS


def _row(examination: Examination, name: str, comparison: Comparison) -> tuple[str, ...]:
    r = examination.record.cases[name]
    rms_dbfs, peak_dbfs = (20 * math.log10(max(level, 1e-6)) for level in (r.rms, r.peak))
    agreed = "none" if comparison.record is None else "same" if comparison.exact else "like it"
    return (
        f"{examination.record.key.precision} {name}",
        str(r.samples),
        f"{rms_dbfs:.1f}, {peak_dbfs:.1f}",
        f"{r.silence_ratio:.0%}",
        "differs" if examination.failures[name] else "same",
        "differs" if comparison.differences[name] else agreed,
    )


def _compared(examination: Examination, comparison: Comparison) -> str:
    key, record = examination.record.key, comparison.record
    if record is None:
        return f"{key.precision}: this voice has no record; it was compared with itself only"
    if comparison.exact:
        return f"{key.precision}: compared with the record of {record.date}"
    other = "another conversion of it" if record.key.title == key.title else record.key.title
    return f"{key.precision}: no hashes on record for {key.title}; figures compared with those of {other}"


def _written(examination: Examination, folder: Path) -> str:
    precision = examination.record.key.precision
    if not examination.is_consistent:
        return f"{precision}: not recorded, as it differs from itself"
    return f"{precision}: recorded in {examination.record.write(folder)}"
