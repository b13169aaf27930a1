"""`voices`: the user's own voices: add, list, show, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from voxcpm_constants.errors import InputError
from voxcpm_runtime.commands.arguments import BundleArgument, Engine, Quiet
from voxcpm_runtime.commands.opening import located, opened, status_line
from voxcpm_runtime.commands.option_groups import takes_groups

if TYPE_CHECKING:
    from voxcpm_runtime.voices.store import VoiceStore
    from voxcpm_runtime.voices.voice import Voice

voices = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Keep voices made from recordings: add, list, show, remove.",
)
_Name = Annotated[str, typer.Argument(metavar="NAME", help="What --voice calls it.")]


@voices.command("add")
@takes_groups
def add(
    *,
    name: _Name,
    bundle: BundleArgument = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "--prompt-audio", "-pa", help="Audio to continue in the same voice."),
    ] = None,
    prompt_text: Annotated[
        str | None, typer.Option("--prompt-text", "-pt", help="What is said in the prompt, word for word.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference", "--reference-audio", "-ra", help="Audio of a voice to speak with (VoxCPM2)."
        ),
    ] = None,
    trim_silence: Annotated[
        bool, typer.Option("--trim-silence", help="Cut silence from both ends of the audio.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a voice of that name.")] = False,
    engine: Engine,
    quiet: Quiet = False,
) -> None:
    """Make a voice from recordings, with a bundle of the generation that is to speak with it."""
    from voxcpm_runtime.voices.store import VoiceStore

    store = VoiceStore()
    if store.path(name).exists() and not overwrite:
        raise InputError(f"a voice {name} is there already; choose another name, or give --overwrite")
    folder = located(bundle, engine.precision, shown=not quiet)
    tts = opened(folder, engine)
    with status_line("encoding …", shown=not quiet):
        voice = tts.create_voice(
            prompt, prompt_text, name=name, reference=reference, trim_silence_vad=trim_silence
        )
    voice = store.add(voice, overwrite=overwrite)
    if not quiet:
        typer.echo(f"{voice.path}: {_described(voice)}")


@voices.command("list")
def list_voices() -> None:
    """All voices, a line each."""
    from voxcpm_runtime.voices.store import VoiceStore

    store = VoiceStore()
    for name in store.names():
        typer.echo(f"{name}: {_what(store, name)}")
    if not store.names():
        typer.echo(f"no voices in {store.folder}", err=True)


@voices.command("show")
def show(name: _Name) -> None:
    """What a voice is, as JSON."""
    import json

    from voxcpm_runtime.voices.store import VoiceStore

    voice = VoiceStore().load(name)
    latents = {"prompt_patches": voice.prompt_patches, "reference_patches": voice.reference_patches}
    document = {"path": str(voice.path), **voice.header.model_dump(mode="json"), **latents}
    typer.echo(json.dumps(document, indent=1, ensure_ascii=False))


@voices.command("remove")
def remove(name: _Name) -> None:
    """Delete a voice, and what was kept beside it."""
    from voxcpm_runtime.voices.store import VoiceStore

    VoiceStore().remove(name)


def _what(store: VoiceStore, name: str) -> str:
    try:
        return _described(store.load(name))
    except InputError as error:
        return str(error)


def _described(voice: Voice) -> str:
    parts = [f"{voice.header.generation}, {voice.header.sample_rate} Hz"]
    if voice.prompt is not None:
        parts.append(f"prompt of {voice.prompt_patches} patches: {voice.transcript.strip()!r}")
    if voice.reference is not None:
        parts.append(f"reference of {voice.reference_patches} patches")
    return "; ".join(parts)
