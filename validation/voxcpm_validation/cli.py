"""The command `voxcpm-coreml validate`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich import box
from rich.table import Table

from voxcpm_constants.errors import InputError, one_of, os_reason
from voxcpm_constants.manifest import MODEL_CARD_FILE
from voxcpm_constants.progress_lines import status_line
from voxcpm_constants.step_models import PRECISIONS
from voxcpm_runtime.commands.shared_arguments import Json, Quiet
from voxcpm_runtime.commands.status_line import table_console
from voxcpm_runtime.storage.atomic_file import report_folder

if TYPE_CHECKING:
    from voxcpm_runtime.backends.loading import Backend
    from voxcpm_validation.report import ValidationReport

_REPORT_ONLY = ("calls", "waveform SNR dB")
"""Columns hidden on the terminal, to keep tables narrow."""
_MAX_UNBROKEN = 17
"""Columns up to this width are not wrapped: the length of the longest step model name."""


def validate(
    bundle: Annotated[str, typer.Argument(help="Bundle folder.")],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint that the bundle was converted from.")],
    lora: Annotated[
        Path | None, typer.Option(help="Folder or weight file of the LoRA merged into the bundle.")
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(help="fp16, int8, int4 or fp32; repeat for several. Default: all in the bundle."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for validation.json and validation.md.")] = None,
    text: Annotated[str | None, typer.Option(help="Text to speak.")] = None,
    prompt: Annotated[Path | None, typer.Option(help="Prompt audio of the continuation case.")] = None,
    prompt_text: Annotated[str | None, typer.Option(help="Transcript of the prompt audio.")] = None,
    patches: Annotated[int, typer.Option(help="Patches to generate per case.", min=2)] = 12,
    seed: Annotated[int, typer.Option(help="Seed of the noise.", min=0)] = 0,
    backend: Annotated[
        str, typer.Option(help="Backend of the end-to-end cases: auto, coreml, coreai or portable.")
    ] = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare step models and the loop with upstream's PyTorch code. Exits with 1 if a figure is below its floor."""
    precisions = [one_of("--precision", name, PRECISIONS) for name in precision or ()] or None
    if (prompt is None) != (prompt_text is None):
        raise InputError("--prompt and --prompt-text: pass both or neither")
    if report is not None:
        inputs = (bundle, checkpoint, lora, prompt)
        report_folder(report, ("validation.json", "validation.md"), inputs)
    from voxcpm_validation.default_text import DEFAULT_TEXT
    from voxcpm_validation.validate import validate_bundle

    with status_line("", shown=not quiet) as note:
        findings = validate_bundle(
            Path(bundle),
            checkpoint,
            lora=lora,
            precisions=precisions,
            text=text or DEFAULT_TEXT,
            prompt_wav=prompt,
            prompt_text=prompt_text,
            patches=patches,
            seed=seed,
            backend=cast("Backend", backend),
            report=note,
        )
    _show(findings, Path(bundle), report, as_json=as_json)
    if findings.failures():
        raise typer.Exit(1)


def _show(findings: ValidationReport, bundle: Path, report: Path | None, *, as_json: bool) -> None:
    """Print the tables and the verdict, and write the report and the bundle's model card."""
    from voxcpm_validation.report import add_to_model_card

    out = table_console()
    for title, header, rows in () if as_json else findings.tables():
        out.print(_narrow_table(title, header, rows), "")
    if report is not None:
        findings.write(report)
        typer.echo(f"written: {report / 'validation.json'}, {report / 'validation.md'}", err=True)
    card = bundle / MODEL_CARD_FILE
    try:
        if add_to_model_card(bundle, findings):
            typer.echo(f"written: {card}", err=True)
    except OSError as error:
        typer.echo(f"not written: {card} ({os_reason(error)})", err=True)
    lines = [("", findings.notes), (typer.style("below its floor: ", "red"), findings.failures())]
    for start, found in (*lines, ("not judged: ", findings.unjudged())):
        for line in found:
            typer.echo(f"{start}{line}", err=True)
    typer.echo(findings.model_dump_json(indent=1) if as_json else typer.style(findings.verdict(), bold=True))


def _narrow_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table that fits 80 columns: headers and long names wrap, figures do not."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0
    )
    shown = [index for index, name in enumerate(header) if name not in _REPORT_ONLY]
    for index in shown:
        width = max(len(row[index]) for row in rows)
        name = "\n".join(textwrap.wrap(header[index], width, break_long_words=False))
        table.add_column(name, no_wrap=width <= _MAX_UNBROKEN, overflow="fold")
    for row in rows:
        table.add_row(*(row[index] for index in shown))
    return table
