"""`batch`: each line of a file is spoken into its own audio file; a second run skips finished lines."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Annotated

import typer

from voxcpm_constants.errors import InputError
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.backends.devices import CPU_DEVICE
from voxcpm_runtime.commands.batch_execution import OnThisMachine, executor_from
from voxcpm_runtime.commands.batch_lines import Defaults, Lines
from voxcpm_runtime.commands.batch_run import BatchRun, alone_in, count_lines, output_folder
from voxcpm_runtime.commands.engine import opened
from voxcpm_runtime.commands.interruption import interruptible
from voxcpm_runtime.commands.parameters import takes_groups
from voxcpm_runtime.commands.shared_arguments import CheckpointArguments, Engine, Quiet, VoiceArguments
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.cancellation import CancelToken

SOME_FAILED = 1
"""Exit code when a line could not be spoken."""


@takes_groups()
def batch(
    *,
    bundle_and_input: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BUNDLE] INPUT",
            help="A bundle, as for generate, and the input: .txt, a text on each line; .jsonl, a JSON object on each "
            "line (text, output, seed, prompt, prompt_text, reference, voice, control, options); - is standard input.",
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--input", "-i", help="The input, instead of the argument INPUT.")
    ] = None,
    folder: Annotated[
        str, typer.Option("--output", "--output-dir", "-o", "-od", help="Folder for the audio files.")
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Speak lines again whose file exists, even a read-only one.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed of every line without its own. Default: a fresh one each.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Speak on all machines of a Ray cluster: HOST:PORT of its head, auto for the one that runs here, or "
            "local for a new one on this machine.",
        ),
    ] = None,
    voice: VoiceArguments,
    options: GenerationOptions,
    engine: Engine,
    checkpoint: CheckpointArguments,
    quiet: Quiet = False,
) -> None:
    """Speak each line of a file into its own audio file; after an interruption the same command resumes."""
    name, source = _bundle_and_input(bundle_and_input or [], source)
    executors = None if ray is None else executor_from("ray")
    recordings = voice.recordings()
    # What a cluster's machines have, this one may lack.
    here = engine if ray is None else replace(engine, device=CPU_DEVICE, threads=None)
    bundle = opened(name, here, checkpoint=checkpoint)
    defaults = Defaults(bundle.architecture, recordings, voice.control, seed, options)
    defaults.check()
    token = CancelToken()
    with contextlib.ExitStack() as held:
        lines = held.enter_context(contextlib.closing(Lines(source, defaults)))
        count = count_lines(lines, user_path(folder), source)
        path = output_folder(folder, source)
        held.enter_context(alone_in(path))
        run = BatchRun(path, bundle.digest, overwrite=overwrite, shown=not quiet)
        executor = (
            OnThisMachine(bundle, engine) if executors is None else executors(ray or "", name, bundle, engine)
        )
        with interruptible(token):
            try:
                run.speak(lines, executor, token)
            finally:
                # After Ctrl-C, too.
                run.report(count)
    token.check()
    if run.failures:
        raise typer.Exit(SOME_FAILED)


def _bundle_and_input(given: list[str], source: str | None) -> tuple[str | None, str]:
    given = given if source is None else [*given, source]
    if not given:
        raise InputError(
            "expected [BUNDLE] INPUT, the input a file of lines, or - for standard input; or --input"
        )
    if len(given) > 2:
        raise InputError(f"expected a bundle and one input, got {len(given)}: {', '.join(given)}")
    return (given[0] if len(given) == 2 else None), given[-1]
