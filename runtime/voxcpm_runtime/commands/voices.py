"""Manage voices made from recordings: add, list, show, remove."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from voxcpm_constants.errors import InputError
from voxcpm_constants.json_files import printed_json
from voxcpm_constants.progress_lines import status_line
from voxcpm_runtime.commands.shared_arguments import (
    BundleArgument,
    Engine,
    Json,
    Quiet,
    RecordingArguments,
    load_voxcpm,
    open_with_engine,
    takes_groups,
)
from voxcpm_runtime.storage.atomic_file import refuse_inputs
from voxcpm_runtime.text.lexicon import lexicon_entries
from voxcpm_runtime.voices.recordings import Recordings
from voxcpm_runtime.voices.store import VoiceStore, built_in_voices
from voxcpm_runtime.voices.voice import Voice

voices = typer.Typer(add_completion=False, help=__doc__)
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the voice, for --voice.")]


@voices.command("add")
@takes_groups
def add(
    *,
    name: _Name,
    bundle: BundleArgument = None,
    arguments: RecordingArguments,
    lexicon: Annotated[
        list[str] | None,
        typer.Option(
            help="Pronunciation lexicon of this voice: WRITTEN, a tab, SAID on each line; repeatable."
        ),
    ] = None,
    trim_silence: Annotated[bool, typer.Option("--trim-silence", help="Trim silence at both ends.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing voice.")] = False,
    engine: Engine,
    quiet: Quiet = False,
) -> None:
    """Create a voice from recordings, for all bundles with the same AudioVAE."""
    store = VoiceStore()
    refuse_inputs(store.free_path(name, overwrite=overwrite), [*arguments.files(), *(lexicon or ())])
    if arguments.prompt is not None and arguments.transcript() is None:
        raise InputError(
            "--prompt needs a transcript (--prompt-text or --prompt-file); without one, give the recording as "
            "--reference (VoxCPM2)"
        )
    recordings = Recordings.for_new_voice(arguments.prompt, arguments.transcript(), arguments.reference)
    recordings.check_files()
    entries = lexicon_entries(lexicon)
    opened_bundle = open_with_engine(bundle, engine)
    unencoded = recordings.decode(opened_bundle.architecture, trimmed=trim_silence)
    with status_line("loading …", shown=not quiet) as note:
        tts = load_voxcpm(opened_bundle, engine, note)
        note("encoding …")
        origin = recordings.provenance(opened_bundle.manifest.source)
        voice = unencoded.encode(tts.driver, name, origin, entries)
    voice = store.add(voice, overwrite=overwrite)
    if not quiet:
        typer.echo(f"{voice.path}: {_description(voice)}")


@voices.command("list")
def list_voices(*, as_json: Json = False) -> None:
    """List all voices: your own, then the built-in ones."""
    store, documents = VoiceStore(), []
    own, built_in = store.names(), built_in_voices()
    for name in [*own, *(name for name in built_in if name not in own)]:
        kind = "" if name in own else f"built in; {built_in[name].header.provenance['sound']}; "
        try:
            voice = store.load(name) if name in own else built_in[name]
            described, document = _description(voice), _document(voice)
        except InputError as error:
            described, document = str(error), {"name": name, "error": str(error)}
        documents.append(document)
        if not as_json:
            typer.echo(f"{name}: {kind}{described}")
    if as_json:
        typer.echo(printed_json(documents))


@voices.command("show")
def show(name: _Name) -> None:
    """Show a voice as JSON."""
    typer.echo(printed_json(_document(VoiceStore().load(name))))


@voices.command("remove")
def remove(name: _Name) -> None:
    """Delete a voice and the files cached next to it."""
    VoiceStore().remove(name)


def _document(voice: Voice) -> dict[str, Any]:
    latents = {"prompt_patches": voice.prompt_patches, "reference_patches": voice.reference_patches}
    return {"path": voice.path and str(voice.path), **voice.header.model_dump(mode="json"), **latents}


def _description(voice: Voice) -> str:
    parts = [f"{voice.header.generation}, {voice.header.sample_rate} Hz"]
    if voice.prompt is not None:
        parts.append(f"prompt of {voice.prompt_patches} patches: {voice.transcript.strip()!r}")
    if voice.reference is not None:
        parts.append(f"reference of {voice.reference_patches} patches")
    return "; ".join(parts)
