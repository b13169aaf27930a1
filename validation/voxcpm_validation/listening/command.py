"""The command `voxcpm-coreml listen`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest
from voxcpm_runtime.bundle.opening import locate_bundle

if TYPE_CHECKING:
    from voxcpm_validation.listening.scores import Scores

HEADER = (
    "system", "case", "WER", "length", "within 15 %", "longest", "cut ends", "likeness", "others'", "right voice",
)  # fmt: skip


def listen(
    bundle: Annotated[
        str | None, typer.Argument(help="Bundle of an English voice. Default: the built-in voice.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="The bundle's checkpoint, to test upstream's PyTorch code too, with the same noise."
        ),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(help="Precision to test; repeat for several. Default: all that the bundle has."),
    ] = None,
    sentences: Annotated[
        int | None, typer.Option(help="Number of sentences, from the first. Default: all.", min=1)
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the first sentence; each next one has the next seed.", min=0)
    ] = 0,
    report: Annotated[
        Path | None, typer.Option(help="Folder to write listening.json into, with all transcripts.")
    ] = None,
) -> None:
    """Test speech with a recogniser: word error rate, length, cut ends and likeness of voice, over unseen sentences."""
    # The recogniser and PyTorch: `--help` works without the extra.
    from voxcpm_validation.listening.material import material
    from voxcpm_validation.listening.scores import Scores, listen
    from voxcpm_validation.listening.speakers import bundle_speaker, upstream_speaker

    folder = locate_bundle(bundle)
    available = Manifest.read(folder).precisions
    asked = precision or list(available)
    if unknown := [p for p in asked if p not in available]:
        raise InputError(f"--precision {unknown[0]}: the bundle has {', '.join(available)}")
    speakers = {} if checkpoint is None else {"upstream fp32": upstream_speaker(checkpoint)}
    speakers |= {f"bundle {p}": bundle_speaker(folder, p) for p in asked}
    console = Console(stderr=True)
    with console.status("") as status:
        scores = listen(speakers, material(sentences), seed=seed, report=status.update)
    table = Table(*HEADER)
    for score in scores:
        table.add_row(*_row(score))
    Console().print(table)
    if report is not None:
        report.mkdir(parents=True, exist_ok=True)
        (report / "listening.json").write_bytes(TypeAdapter(list[Scores]).dump_json(scores, indent=1) + b"\n")
        console.print(f"written: {report / 'listening.json'}")


def _row(score: Scores) -> tuple[str, ...]:
    likeness = (score.similarity, score.other_similarity)
    return (
        score.system,
        score.case,
        f"{score.word_error_rate:.1%}",
        f"{score.length_ratio:.2f}",
        f"{score.within_natural:.0%}",
        f"{score.longest_ratio:.2f}",
        str(score.cut_ends),
        *("" if value is None else f"{value:.2f}" for value in likeness),
        "" if score.right_voice is None else f"{score.right_voice:.0%}",
    )
