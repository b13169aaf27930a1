"""`generate`, and upstream's two verbs for parts of it: `design` and `clone`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from voxcpm_constants.errors import InputError
from voxcpm_runtime.commands.arguments import (
    BundleArgument,
    Control,
    Engine,
    Knobs,
    Output,
    Quiet,
    Seed,
    Voice,
    Words,
)
from voxcpm_runtime.commands.opening import located, opened, progress_text, status_line
from voxcpm_runtime.commands.option_groups import takes_groups

if TYPE_CHECKING:
    from pathlib import Path

    from voxcpm_runtime.speech import Speech


@dataclass(frozen=True)
class _NoAudio:
    """Options of `clone` that `design` knows in order to refuse them by name."""

    prompt: Annotated[str | None, typer.Option("--prompt", "--prompt-audio", "-pa", hidden=True)] = None
    prompt_text: Annotated[str | None, typer.Option("--prompt-text", "-pt", hidden=True)] = None
    prompt_file: Annotated[str | None, typer.Option(hidden=True)] = None
    reference: Annotated[str | None, typer.Option("--reference", "--reference-audio", "-ra", hidden=True)] = (
        None
    )

    def given(self) -> list[str]:
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value is not None]


@takes_groups
def generate(
    *,
    bundle: BundleArgument = None,
    words: Words,
    voice: Voice,
    output: Output = "out.wav",
    seed: Seed = None,
    knobs: Knobs,
    engine: Engine,
    quiet: Quiet = False,
) -> None:
    """Speak a text with a bundle into an audio file, in any mode."""
    _speak(bundle, words, voice, output, seed, knobs, engine, quiet)


@takes_groups
def design(
    *,
    bundle: BundleArgument = None,
    words: Words,
    control: Control = None,
    audio: _NoAudio,
    output: Output = "out.wav",
    seed: Seed = None,
    knobs: Knobs,
    engine: Engine,
    quiet: Quiet = False,
) -> None:
    """Speak in a voice that a description makes (VoxCPM2)."""
    if given := audio.given():
        raise InputError(
            f"design makes a voice from words and takes no recording, got {', '.join(given)}; use clone"
        )
    _speak(bundle, words, Voice(control=control), output, seed, knobs, engine, quiet, designing=True)


@takes_groups
def clone(
    *,
    bundle: BundleArgument = None,
    words: Words,
    voice: Voice,
    output: Output = "out.wav",
    seed: Seed = None,
    knobs: Knobs,
    engine: Engine,
    quiet: Quiet = False,
) -> None:
    """Speak in the voice of a recording: a reference (VoxCPM2), a prompt to continue, or both."""
    if voice.prompt is None and voice.reference is None:
        raise InputError(
            "clone needs a recording: --reference, or --prompt with --prompt-text or --prompt-file; "
            "use generate or design without one"
        )
    _speak(bundle, words, voice, output, seed, knobs, engine, quiet)


def _speak(
    bundle: str | None,
    words: Words,
    voice: Voice,
    output: str,
    seed: int | None,
    knobs: Knobs,
    engine: Engine,
    quiet: bool,
    *,
    designing: bool = False,
) -> None:
    from voxcpm_constants.manifest import Manifest
    from voxcpm_runtime.audio_file import check_output_path, write_audio
    from voxcpm_runtime.control import controlled_text, require_reference, require_voxcpm2

    # What can be refused without opening the bundle is refused first, and before its models are loaded what its
    # generation cannot do.
    target = check_output_path(output)
    text, transcript, options = words.read(), voice.transcript(), knobs.checked()
    voice.check_files()
    folder = located(bundle, engine.precision, shown=not quiet)
    generation = Manifest.read(folder).architecture.architecture
    if designing:
        require_voxcpm2(generation, "voice design", "use generate, or clone with a prompt")
    if voice.reference is not None:
        require_reference(generation)
    text = controlled_text(text, voice.control, generation=generation, continues=transcript is not None)
    tts = opened(folder, engine)
    with status_line("prefill …", shown=not quiet) as note:
        speech = tts.speak(
            text,
            voice.prompt,
            transcript,
            voice.reference,
            seed=seed,
            progress=lambda progress: note(progress_text(progress)),
            **options,
        )
    write_audio(target, speech.audio, speech.sample_rate)
    if not quiet:
        typer.echo(spoken_line(target, speech))


def spoken_line(target: Path, speech: Speech) -> str:
    """What became of an utterance."""
    return (
        f"{target}: {speech.audio_seconds:.2f} s of speech in {speech.elapsed_seconds:.2f} s "
        f"(real-time factor {speech.real_time_factor:.2f}), seed {speech.seed}"
    )
