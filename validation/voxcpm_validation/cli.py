"""The command line's `validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from voxcpm_constants.errors import InputError
from voxcpm_constants.step_models import PRECISIONS


def validate(
    bundle: Annotated[Path, typer.Argument(help="Bundle folder.")],
    checkpoint: Annotated[str, typer.Option(help="The checkpoint that the bundle was converted from.")],
    lora: Annotated[
        Path | None, typer.Option(help="The LoRA that was merged into the bundle: folder or weight file.")
    ] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help="fp16, int8, int4 or fp32; all that are there by default.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for validation.json and validation.md.")] = None,
    text: Annotated[str | None, typer.Option(help="What to say.")] = None,
    prompt: Annotated[Path | None, typer.Option(help="Prompt audio of the continuation case.")] = None,
    prompt_text: Annotated[str | None, typer.Option(help="Its transcript.")] = None,
    patches: Annotated[int, typer.Option(help="Patches to speak in each case.", min=2)] = 12,
    seed: Annotated[int, typer.Option(help="Seed of the noise.", min=0)] = 0,
    backend: Annotated[
        str, typer.Option(help="auto, coreml or portable: what the end-to-end cases run on.")
    ] = "auto",
) -> None:
    """Compare each step model and the whole loop with upstream's PyTorch code. Exit code 1: a figure is too low."""
    from voxcpm_validation.reference import DEFAULT_TEXT
    from voxcpm_validation.validate import validate_bundle

    unknown = [p for p in precision or () if p not in PRECISIONS]
    if unknown:
        raise InputError(f"--precision {unknown[0]}: expected one of {', '.join(PRECISIONS)}")
    if (prompt is None) != (prompt_text is None):
        raise InputError("--prompt and --prompt-text belong together: give both or neither")
    chosen: Any = {"precisions": precision, "backend": backend}
    console = Console(stderr=True)
    with console.status("") as status:
        findings = validate_bundle(
            bundle,
            checkpoint,
            lora=lora,
            text=text or DEFAULT_TEXT,
            prompt_wav=prompt,
            prompt_text=prompt_text,
            patches=patches,
            seed=seed,
            report=status.update,
            **chosen,
        )
    out = Console()
    for title, header, rows in findings.tables():
        table = Table(*header, title=title)
        for row in rows:
            table.add_row(*row)
        out.print(table)
    if report is not None:
        findings.write(report)
        console.print(f"written: {report / 'validation.json'}, {report / 'validation.md'}")
    failures = findings.failures()
    for line in failures:
        console.print(f"[red]below its floor:[/red] {line}")
    if failures:
        raise typer.Exit(1)
