"""`batch`: each line of a file spoken into a file of its own; what is done stays done."""

from __future__ import annotations

from typing import Annotated

import typer

from voxcpm_constants.errors import InputError
from voxcpm_runtime.commands.arguments import Engine, Knobs, Quiet, Voice
from voxcpm_runtime.commands.opening import located, opened
from voxcpm_runtime.commands.option_groups import takes_groups

SOME_FAILED = 1


@takes_groups
def batch(
    *,
    bundle_and_input: Annotated[
        list[str],
        typer.Argument(
            metavar="[BUNDLE] INPUT",
            help="A bundle as for generate, and what to say: .txt, a text on each line; .jsonl, a JSON object on each "
            "line, of text, output, seed, prompt, prompt_text, reference, voice, control, options; - is standard input",
        ),
    ],
    folder: Annotated[
        str, typer.Option("--output", "--output-dir", "-o", "-od", help="Folder for the audio files.")
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Speak again what is already there.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Of every line without its own. Default: a fresh one each.")
    ] = None,
    voice: Voice,
    knobs: Knobs,
    engine: Engine,
    quiet: Quiet = False,
) -> None:
    """Speak each line of a file into an audio file of its own; the same command goes on where it was cut short."""
    from voxcpm_constants.manifest import Manifest
    from voxcpm_runtime.bundle.opening import choose_precision
    from voxcpm_runtime.commands.batch_lines import Defaults, check_defaults, read_utterances
    from voxcpm_runtime.commands.batch_run import BatchRun, check_outputs, output_folder
    from voxcpm_runtime.commands.interruption import interruptible

    bundle, source = _bundle_and_input(bundle_and_input)
    transcript, options = voice.transcript(), knobs.checked()
    bundle_folder = located(bundle, engine.precision, shown=not quiet)
    manifest = Manifest.read(bundle_folder)
    digest = manifest.digest(choose_precision(bundle_folder, manifest, engine.precision))
    defaults = Defaults(
        generation=manifest.architecture.generation,
        prompt=voice.prompt,
        prompt_text=transcript,
        reference=voice.reference,
        voice=voice.voice,
        control=voice.control,
        seed=seed,
        options=options,
    )
    check_defaults(defaults)
    lines = list(read_utterances(source, defaults))
    check_outputs(lines)
    run = BatchRun(output_folder(folder, source), digest, shown=not quiet)
    with interruptible() as token:
        try:
            # The models are loaded only when there is something left to speak.
            if pending := run.pending(lines, overwrite=overwrite):
                run.speak(pending, opened(bundle_folder, engine), token)
        finally:
            # After Ctrl-C too.
            run.tell(len(lines))
    token.check()
    if run.failures:
        raise typer.Exit(SOME_FAILED)


def _bundle_and_input(given: list[str]) -> tuple[str | None, str]:
    if len(given) > 2:
        raise InputError(f"expected a bundle and one input, got {len(given)}: {', '.join(given)}")
    return (given[0] if len(given) == 2 else None), given[-1]
