"""The command `voxcpm-coreml lint`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from voxcpm_constants.json_files import printed_json
from voxcpm_constants.progress_lines import status_line
from voxcpm_runtime.commands.shared_arguments import Json, Quiet
from voxcpm_runtime.commands.status_line import table_console

if TYPE_CHECKING:
    from .report import LintReport


def lint(
    bundle: Annotated[
        str | None, typer.Argument(help="Bundle folder or hub id. Default: the built-in voice.")
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(help="fp16, int8, int4 or fp32; repeat for several. Default: all in the bundle."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check a bundle's packages for what real hardware rejects. Exits with 1 if there are findings."""
    # onnx and coremltools, which --help does not need.
    from .bundle import lint_bundle

    with status_line("", shown=not quiet) as note:
        report = lint_bundle(bundle, precision or (), report=note)
    if as_json:
        typer.echo(printed_json(report.document()))
    else:
        _show(report)
    if report.faults:
        raise typer.Exit(1)


def _show(report: LintReport) -> None:
    from .report import HEADER

    console = table_console()
    if rows := report.rows():
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for column in HEADER:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
        console.print()
    for rule, why, sources in report.reasons():
        console.print(escape(f"{rule}: {why} ({sources})"), soft_wrap=True)
    for line in report.lines():
        console.print(escape(line), soft_wrap=True)
