"""The command `voxcpm-coreml listen`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.progress_lines import status_line
from voxcpm_runtime.bundle.opening import locate_bundle
from voxcpm_runtime.commands.shared_arguments import Quiet
from voxcpm_runtime.commands.status_line import table_console
from voxcpm_runtime.storage.atomic_file import atomic_file, make_folder, report_folder


def listen(
    bundle: Annotated[
        str | None, typer.Argument(help="Bundle. Default: the built-in voice, which is English.")
    ] = None,
    prose: Annotated[
        bool, typer.Option("--prose", help="Read three kinds of prose, zero-shot and as a continuation.")
    ] = False,
    short_texts: Annotated[
        bool, typer.Option("--short-texts", help="Read 20 texts of one or two words.")
    ] = False,
    narration: Annotated[
        bool, typer.Option("--narration", help="Narrate a story, measured minute by minute.")
    ] = False,
    chinese: Annotated[
        bool, typer.Option("--chinese", help="Read 10 Chinese sentences; needs a multilingual --recogniser.")
    ] = False,
    copy_synthesis: Annotated[
        bool,
        typer.Option("--copy-synthesis", help="Encode and decode recordings: the AudioVAE without the LMs."),
    ] = False,
    short_sentences: Annotated[
        bool,
        typer.Option("--short-sentences", help="Read 50 sentences. The default."),
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="The bundle's checkpoint, to also test upstream's PyTorch code with the same noise "
            "(except for the narration)."
        ),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(help="Precision to test; repeat for several, or `none`. Default: all of the bundle's."),
    ] = None,
    sentences: Annotated[
        int | None, typer.Option(help="Number of short or Chinese sentences to read. Default: all.", min=1)
    ] = None,
    words: Annotated[
        int | None, typer.Option(help="Words per kind of prose. Default: all, about 760.", min=1)
    ] = None,
    upstream_words: Annotated[
        int | None, typer.Option(help="The same for upstream, which is slower. Default: --words.", min=1)
    ] = None,
    minutes: Annotated[float, typer.Option(help="Length of the narration in minutes.", min=1, max=30)] = 30,
    seed: Annotated[
        int, typer.Option(help="Seed of a part's first text; it increases by one per text.", min=0)
    ] = 0,
    recogniser: Annotated[
        Path | None,
        typer.Option(help="Folder of a Whisper model in CTranslate2 format. Default: tiny.en."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Folder for listening.json, with all transcripts."),
    ] = None,
    saved: Annotated[
        list[Path] | None,
        typer.Option(help="A saved listening.json to show or merge; repeatable."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Test speech: word errors, sound quality and pitch, length, cuts, repetitions, similarity, pace and level."""
    if report is not None:
        inputs = (bundle, checkpoint, recogniser, *(saved or ()))
        report_folder(report, ("listening.json",), inputs)
    # Imports the recogniser and PyTorch; `--help` works without the extra.
    from voxcpm_validation.listening.copies import copies
    from voxcpm_validation.listening.hearing import Listener
    from voxcpm_validation.listening.parts import Extent, Report, listen, tables
    from voxcpm_validation.listening.speakers import bundle_copier, bundle_speaker, upstream_speaker

    chosen = {
        "sentences": short_sentences, "prose": prose, "short_texts": short_texts, "narration": narration,
        "chinese": chinese,
    }  # fmt: skip
    parts = [part for part, selected in chosen.items() if selected] or (
        [] if saved or copy_synthesis else ["sentences"]
    )
    result = sum(map(Report.read, saved or ()), Report())
    if parts or copy_synthesis:
        folder = locate_bundle(bundle)
        manifest = Manifest.read(folder)
        available, profile = manifest.precisions, manifest.speech
        precisions = [p for p in precision or available if p != "none"]
        if unknown := [p for p in precisions if p not in available]:
            raise InputError(f"--precision {unknown[0]}: the bundle has {', '.join(available)}")
        listener = Listener.of(recogniser)
        natural = None if profile is None else profile.expected_seconds
        if chinese and not listener.recogniser.is_multilingual:
            raise InputError(
                "--chinese: expected a multilingual recogniser; pass the folder of one with --recogniser"
            )
        with status_line("", shown=not quiet) as note:
            options: dict[str, Any] = {"listener": listener, "natural": natural, "seed": seed, "report": note}
            if checkpoint is not None and parts:
                speak, short = upstream_speaker(checkpoint, folder), [p for p in parts if p != "narration"]
                extent = Extent(sentences, upstream_words or words)
                result += listen("upstream fp32", speak, short, extent=extent, **options)
            for p in precisions:
                extent = Extent(sentences, words, minutes)
                if parts:
                    result += listen(
                        f"bundle {p}", bundle_speaker(folder, p), parts, extent=extent, **options
                    )
                if copy_synthesis:
                    result += Report(copies=copies(f"bundle {p}", bundle_copier(folder, p), listener.judge))
    for table in tables(result):
        table_console().print(table)
    if report is not None:
        make_folder(report)
        with atomic_file(report / "listening.json") as file:
            file.write(result.model_dump_json(indent=1).encode() + b"\n")
        typer.echo(f"written: {report / 'listening.json'}", err=True)
