"""`batch`: each line of a file is spoken into its own audio file; a second run skips finished lines."""

from __future__ import annotations

from typing import Annotated

import typer

from voxcpm_constants.errors import InputError
from voxcpm_runtime.commands.batch_lines import Defaults, read_lines
from voxcpm_runtime.commands.batch_run import BatchRun, check_outputs, output_folder
from voxcpm_runtime.commands.engine import loaded, opened
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
        bool, typer.Option("--overwrite", help="Speak lines again whose file exists.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed of every line without its own. Default: a fresh one each.")
    ] = None,
    voice: VoiceArguments,
    options: GenerationOptions,
    engine: Engine,
    checkpoint: CheckpointArguments,
    quiet: Quiet = False,
) -> None:
    """Speak each line of a file into its own audio file; after an interruption the same command resumes."""
    name, source = _bundle_and_input(bundle_and_input or [], source)
    recordings = voice.recordings()
    bundle = opened(name, engine, shown=not quiet, checkpoint=checkpoint)
    defaults = Defaults(bundle.architecture, recordings, voice.control, seed, options)
    defaults.check()
    lines = list(read_lines(source, defaults))
    check_outputs(lines)
    run = BatchRun(output_folder(folder, source), bundle.digest, shown=not quiet)
    token = CancelToken()
    with interruptible(token):
        try:
            # The models are loaded only when there is something left to speak.
            if pending := run.pending(lines, overwrite=overwrite):
                run.speak(pending, loaded(bundle, engine), token)
        finally:
            # After Ctrl-C, too.
            run.report(len(lines))
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
