"""`generate`, and upstream's two verbs for parts of it: `design` and `clone`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voxcpm_constants.errors import InputError
from voxcpm_runtime.commands.arguments import BundleArgument, Control, Delivery, Engine, Knobs, Voice, Words
from voxcpm_runtime.commands.opening import located, opened, progress_text, status_line
from voxcpm_runtime.commands.option_groups import takes_groups

if TYPE_CHECKING:
    from pathlib import Path

    from voxcpm_runtime.speech.results import Speech
    from voxcpm_runtime.speech.resuming import KeptSegments
    from voxcpm_runtime.voices.voice import Voice as KeptVoice
    from voxcpm_runtime.voxcpm import VoxCPM


@dataclass(frozen=True)
class _NoAudio:
    """Options of `clone` that `design` knows in order to refuse them by name."""

    voice: Annotated[str | None, typer.Option("--voice", "-v", hidden=True)] = None
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
    delivery: Delivery,
    knobs: Knobs,
    engine: Engine,
) -> None:
    """Speak a text of any length with a bundle into an audio file, in any mode."""
    _speak(bundle, words, voice, delivery, knobs, engine)


@takes_groups
def design(
    *,
    bundle: BundleArgument = None,
    words: Words,
    control: Control = None,
    audio: _NoAudio,
    delivery: Delivery,
    knobs: Knobs,
    engine: Engine,
) -> None:
    """Speak in a voice that a description makes (VoxCPM2)."""
    if given := audio.given():
        raise InputError(
            f"design makes a voice from words and takes no recording, got {', '.join(given)}; use clone"
        )
    _speak(bundle, words, Voice(control=control), delivery, knobs, engine, designing=True)


@takes_groups
def clone(
    *,
    bundle: BundleArgument = None,
    words: Words,
    voice: Voice,
    delivery: Delivery,
    knobs: Knobs,
    engine: Engine,
) -> None:
    """Speak in the voice of a recording: a reference (VoxCPM2), a prompt to continue, or both; or in a kept voice."""
    if not voice.given:
        raise InputError(
            "clone needs a recording: --reference, or --prompt with --prompt-text or --prompt-file, or a --voice; "
            "use generate or design without one"
        )
    _speak(bundle, words, voice, delivery, knobs, engine)


@dataclass(frozen=True)
class _Order:
    """What is asked for, checked."""

    text: str
    transcript: str | None
    voice: Voice
    kept: KeptVoice | None
    options: dict[str, Any]
    delivery: Delivery

    def arguments(self) -> dict[str, Any]:
        """Of `VoxCPM.speak`."""
        return {
            "text": self.text,
            "prompt_wav_path": self.voice.prompt,
            "prompt_text": self.transcript,
            "reference_wav_path": self.voice.reference,
            "voice": self.kept,
            "control": self.voice.control,
            "seed": self.delivery.seed,
            **self.options,
        }


def _speak(
    bundle: str | None,
    words: Words,
    voice: Voice,
    delivery: Delivery,
    knobs: Knobs,
    engine: Engine,
    *,
    designing: bool = False,
) -> None:
    from voxcpm_constants.manifest import Manifest
    from voxcpm_runtime.audio.files import check_output_path
    from voxcpm_runtime.bundle.opening import choose_precision
    from voxcpm_runtime.commands.raw_pcm import STANDARD_OUTPUT
    from voxcpm_runtime.text.control import require_reference, require_voxcpm2

    # What can be refused without opening the bundle is refused first, and before its models are loaded what its
    # generation cannot do.
    target = None if delivery.output == STANDARD_OUTPUT else check_output_path(delivery.output)
    text, transcript, options = words.read(), voice.transcript(), knobs.checked()
    voice.check_files()
    order = _Order(text, transcript, voice, voice.kept(), options, delivery)
    shown = not delivery.quiet
    folder = located(bundle, engine.precision, shown=shown)
    manifest = Manifest.read(folder)
    generation = manifest.architecture.generation
    if designing:
        require_voxcpm2(generation, "voice design", "use generate, or clone with a prompt")
    if voice.reference is not None:
        require_reference(generation)
    _check_control(order, generation)
    if target is None:
        _stream(order, opened(folder, engine))
        return
    digest = manifest.digest(choose_precision(folder, manifest, engine.precision))
    kept = _kept_segments(order, target, digest)
    _write(order, target, opened(folder, engine), kept)


def _write(order: _Order, target: Path, tts: VoxCPM, kept: KeptSegments) -> None:
    from voxcpm_runtime.audio.files import write_audio
    from voxcpm_runtime.commands.interruption import interruptible
    from voxcpm_runtime.speech.cancellation import Cancelled

    shown = not order.delivery.quiet
    arguments = order.arguments() | {"seed": kept.seed, "kept": kept}
    with interruptible() as token, status_line("prefill …", shown=shown) as note:
        speech = tts.speak(
            **arguments,
            parallel_segments=order.delivery.parallel_segments,
            progress=lambda progress: note(progress_text(progress)),
            cancel=token,
            keep_partial=True,
        )
    writes = not speech.cancelled or (order.delivery.keep_partial and len(speech.audio) > 0)
    clipped = write_audio(target, speech.audio, speech.sample_rate) if writes else 0
    if not speech.cancelled:
        kept.discard()
    if shown and writes:
        typer.echo(spoken_line(target, speech, clipped))
    if speech.cancelled:
        done = f"; {kept.count} segments are kept: the same command goes on" if kept.count else ""
        raise Cancelled(f"interrupted: {target} {'holds a part' if writes else 'was not written'}{done}")


def _stream(order: _Order, tts: VoxCPM) -> None:
    from voxcpm_runtime.commands.interruption import interruptible
    from voxcpm_runtime.commands.raw_pcm import check_standard_output, write_raw_pcm
    from voxcpm_runtime.speech.cancellation import Cancelled

    check_standard_output(tts.sample_rate)
    with interruptible() as token:
        chunks = tts.generate_streaming(
            **order.arguments(), first_chunk_patches=1, cancel=token, keep_partial=True
        )
        written = write_raw_pcm(chunks, tts.sample_rate, quiet=order.delivery.quiet)
    if not order.delivery.quiet:
        told = f"{written.samples / tts.sample_rate:.2f} s of speech{_clipped_text(written.clipped)}"
        typer.echo(told, err=True)
    if token.cancelled:
        raise Cancelled("interrupted")


def _check_control(order: _Order, generation: str) -> None:
    from voxcpm_runtime.text.control import controlled_text

    continues = order.transcript is not None or (order.kept is not None and order.kept.prompt is not None)
    controlled_text(order.text, order.voice.control, generation=generation, continues=continues)


def _kept_segments(order: _Order, target: Path, bundle_digest: str) -> KeptSegments:
    """Of this very speech, where an earlier run was interrupted."""
    import secrets

    from voxcpm_runtime.commands.batch_lines import Utterance
    from voxcpm_runtime.speech.resuming import KeptSegments

    utterance = Utterance(
        line=0,
        output=target.name,
        text=order.text if order.voice.control is None else f"({order.voice.control}){order.text}",
        prompt=order.voice.prompt,
        prompt_text=order.transcript,
        reference=order.voice.reference,
        voice=order.kept,
        seed=None,
        options=order.options,
    )
    seed = order.delivery.seed
    drawn = secrets.randbits(32) if seed is None else seed
    return KeptSegments(target, utterance.digest(bundle_digest), drawn, drawn=seed is None)


def spoken_line(target: Path, speech: Speech, clipped: int) -> str:
    """What became of an utterance."""
    return (
        f"{target}: {speech.audio_seconds:.2f} s of speech in {speech.elapsed_seconds:.2f} s "
        f"(real-time factor {speech.real_time_factor:.2f}), seed {speech.seed}{_clipped_text(clipped)}"
    )


def _clipped_text(clipped: int) -> str:
    return f", {clipped} samples clipped" if clipped else ""
