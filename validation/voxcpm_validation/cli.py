"""The command `voxcpm-coreml validate`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from voxcpm_constants.errors import InputError, os_reason
from voxcpm_constants.manifest import MODEL_CARD_FILE
from voxcpm_constants.step_models import PRECISIONS
from voxcpm_runtime.commands.status_line import status_line
from voxcpm_runtime.storage.whole_file import report_folder

if TYPE_CHECKING:
    from voxcpm_constants.step_models import Precision
    from voxcpm_runtime.backends.choice import Backend
    from voxcpm_validation.report import Report

_PATCHES = 12
_IN_THE_REPORT_ONLY = ("calls", "waveform SNR dB")
"""Columns that would make a table wider than a terminal."""
_MAX_UNBROKEN = 17
"""Characters of the longest cell in a column that is not broken: those of the longest step model."""


def validate(
    bundle: Annotated[
        str | None, typer.Argument(help="Bundle folder. Default with --golden: the built-in voice.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="The checkpoint that the bundle was converted from.")
    ] = None,
    lora: Annotated[
        Path | None, typer.Option(help="The LoRA that was merged into the bundle: its folder or weight file.")
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(help="fp16, int8, int4 or fp32; repeat for several. Default: all that the bundle has."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for validation.json and validation.md.")] = None,
    text: Annotated[str | None, typer.Option(help="Text to speak.")] = None,
    prompt: Annotated[Path | None, typer.Option(help="Prompt audio of the continuation case.")] = None,
    prompt_text: Annotated[str | None, typer.Option(help="Transcript of the prompt audio.")] = None,
    patches: Annotated[
        int | None, typer.Option(help=f"Patches to speak in each case. Default: {_PATCHES}.", min=2)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the noise. Default: 0.", min=0)] = None,
    backend: Annotated[
        str, typer.Option(help="Backend of the end-to-end cases: auto, coreml, coreai or portable.")
    ] = "auto",
    golden: Annotated[
        bool, typer.Option("--golden", help="Compare with recorded hashes and figures instead of upstream.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="With --golden: write new records instead of comparing.")
    ] = False,
    records: Annotated[
        Path | None, typer.Option(help="With --golden: folder of records. Default: the built-in voice's.")
    ] = None,
) -> None:
    """Compare each step model and the whole loop with upstream's PyTorch code. Exit code 1: a figure below its floor.

    With --golden: speak fixed texts and compare the samples with golden records, and between runs, processes and chunk
    sizes. Exit code 1: samples differ.
    """
    unknown = [p for p in precision or () if p not in PRECISIONS]
    if unknown:
        raise InputError(f"--precision {unknown[0]}: expected one of {', '.join(PRECISIONS)}")
    if golden:
        # Neither way imports what only the other one needs: PyTorch, or the golden voice.
        from voxcpm_validation.golden.examination import check_golden

        others = (
            ("--checkpoint", checkpoint), ("--lora", lora), ("--report", report), ("--text", text),
            ("--prompt", prompt), ("--prompt-text", prompt_text), ("--patches", patches), ("--seed", seed),
        )  # fmt: skip
        if given := [name for name, value in others if value is not None]:
            raise InputError(f"--golden has its own texts and seeds; leave out {', '.join(given)}")
        check_golden(bundle, precision or (), cast("Backend", backend), record=record, records=records)
        return
    if record or records is not None:
        raise InputError("--record and --records need --golden")
    if bundle is None or checkpoint is None:
        raise InputError(
            "expected a bundle and the --checkpoint that it was converted from; only --golden needs neither"
        )
    if (prompt is None) != (prompt_text is None):
        raise InputError("--prompt and --prompt-text: give both or neither")
    if report is not None:
        inputs = (bundle, checkpoint, lora, prompt)
        report_folder(report, ("validation.json", "validation.md"), inputs)
    from voxcpm_validation.reference import DEFAULT_TEXT
    from voxcpm_validation.validate import validate_bundle

    with status_line("") as note:
        findings = validate_bundle(
            Path(bundle),
            checkpoint,
            lora=lora,
            precisions=cast("list[Precision] | None", precision),
            text=text or DEFAULT_TEXT,
            prompt_wav=prompt,
            prompt_text=prompt_text,
            patches=patches or _PATCHES,
            seed=seed or 0,
            backend=cast("Backend", backend),
            report=note,
        )
    _show(findings, Path(bundle), report)
    if findings.failures():
        raise typer.Exit(1)


def _show(findings: Report, bundle: Path, report: Path | None) -> None:
    """Print the tables and the verdict, and write the report and the bundle's model card."""
    from voxcpm_validation.model_card import add_to_model_card

    out, console = Console(), Console(stderr=True)
    for title, header, rows in findings.tables():
        out.print(_narrow_table(title, header, rows), "")
    if report is not None:
        findings.write(report)
        console.print(f"written: {report / 'validation.json'}, {report / 'validation.md'}")
    card = bundle / MODEL_CARD_FILE
    try:
        if add_to_model_card(bundle, findings):
            console.print(f"written: {card}")
    except OSError as error:
        console.print(f"not written: {card} ({os_reason(error)})")
    lines = [("", findings.notes), ("[red]below its floor:[/red] ", findings.failures())]
    for start, found in (*lines, ("not judged: ", findings.unjudged())):
        for line in found:
            console.print(f"{start}{line}")
    out.print(f"[bold]{findings.verdict()}[/bold]")


def _narrow_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table that fits 80 columns: headers and long names are broken over lines, figures are not."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0
    )
    shown = [index for index, name in enumerate(header) if name not in _IN_THE_REPORT_ONLY]
    for index in shown:
        width = max(len(row[index]) for row in rows)
        name = "\n".join(textwrap.wrap(header[index], width, break_long_words=False))
        table.add_column(name, no_wrap=width <= _MAX_UNBROKEN, overflow="fold")
    for row in rows:
        table.add_row(*(row[index] for index in shown))
    return table
