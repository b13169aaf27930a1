"""`generate`, and upstream's commands for parts of it: `design` and `clone`."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Protocol

import typer

from voxcpm_constants.errors import InputError
from voxcpm_constants.hub import is_hub_id
from voxcpm_runtime.argument_types import shown
from voxcpm_runtime.audio.files import check_output_path, write_audio
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.commands.engine import loaded, opened
from voxcpm_runtime.commands.interruption import interruptible
from voxcpm_runtime.commands.parameters import takes_groups
from voxcpm_runtime.commands.raw_pcm import STANDARD_OUTPUT, check_standard_output, write_raw_pcm
from voxcpm_runtime.commands.shared_arguments import (
    BundleArgument,
    CheckpointArguments,
    Delivery,
    Engine,
    RecordingArguments,
    VoiceArguments,
    Words,
    input_file,
)
from voxcpm_runtime.commands.status_line import progress_text, status_line
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.arguments import Arguments
from voxcpm_runtime.speech.cancellation import Cancelled, CancelToken
from voxcpm_runtime.speech.plan import plan
from voxcpm_runtime.speech.randomness import randomness
from voxcpm_runtime.speech.saved_segments import SavedSegments
from voxcpm_runtime.storage.whole_file import replaced_file

_MAX_REPEATED = 200
"""Characters of a text that an error repeats in full."""
# `design` has these parameters only to refuse them by name.
_OF_A_VOICE = ("voice", *(field.name for field in fields(RecordingArguments)))


@dataclass(frozen=True)
class Asked:
    """The arguments of `generate`, `design` and `clone`, beside the bundle."""

    words: Words
    voice: VoiceArguments
    delivery: Delivery
    options: GenerationOptions
    engine: Engine
    checkpoint: CheckpointArguments


@takes_groups()
def generate(*, bundle: BundleArgument = None, asked: Asked) -> None:
    """Speak a text of any length with a bundle into an audio file, in any mode."""
    _speak("generate", bundle, asked)


@takes_groups(hidden=_OF_A_VOICE)
def design(*, bundle: BundleArgument = None, asked: Asked) -> None:
    """Speak in a voice that a description makes (VoxCPM2), or in the checkpoint's own without one."""
    given = [f"--{name.replace('_', '-')}" for name in _OF_A_VOICE if getattr(asked.voice, name) is not None]
    if given:
        raise InputError(
            f"design makes a voice from words and takes no recording, got {', '.join(given)}; use clone"
        )
    _speak("design", bundle, asked)


@takes_groups()
def clone(*, bundle: BundleArgument = None, asked: Asked) -> None:
    """Speak in the voice of a recording: a reference (VoxCPM2), a prompt to continue, or both; or in a saved voice."""
    voice = asked.voice
    if (voice.voice, voice.prompt, voice.reference) == (None, None, None):
        raise InputError(
            "clone needs a recording: --reference, or --prompt with --prompt-text or --prompt-file, or a --voice; "
            "use generate or design without one"
        )
    _speak("clone", bundle, asked)


def _speak(command: str, bundle: str | None, asked: Asked) -> None:
    # What can be refused without the bundle is refused before it is opened, the rest before its models are loaded.
    if bundle is not None and asked.words == Words() and not is_hub_id(bundle):
        _refuse_text_as_bundle(command, bundle)
    delivery, voice = asked.delivery, asked.voice
    target = None
    if delivery.output != STANDARD_OUTPUT:
        inputs = (input_file(asked.words.text_file), *voice.files())
        target = check_output_path(delivery.output, inputs=inputs, overwrite=delivery.overwrite)
    arguments = Arguments(
        text=asked.words.read(),
        recordings=voice.recordings(),
        control=voice.control,
        options=asked.options,
        seed=delivery.seed,
        parallel_segments=delivery.parallel_segments,
        keep_partial=True,
    )
    arguments.recordings.check_files()
    opened_bundle = opened(bundle, asked.engine, checkpoint=asked.checkpoint)
    if target is None:
        _stream(arguments, opened_bundle, asked)
    else:
        _write(arguments, target, opened_bundle, asked)


def _refuse_text_as_bundle(command: str, bundle: str) -> None:
    """Raises InputError for the only argument of a command if it is not a folder: it is probably what to say."""
    # pathlib raises for text that is too long for a file name.
    if not os.path.isdir(bundle):  # noqa: PTH112
        option = "--text-file" if os.path.isfile(bundle) else "--text"  # noqa: PTH113
        words = shlex.quote(bundle) if len(bundle) <= _MAX_REPEATED else '"…"'
        raise InputError(
            f"{shown(bundle)} was taken as the bundle, and is not a folder; to speak it: "
            f"voxcpm-coreml {command} {option} {words}"
        )


def _write(arguments: Arguments, target: Path, bundle: Bundle, asked: Asked) -> None:
    shown = not asked.delivery.quiet
    token = CancelToken()
    seed = randomness(arguments.seed, None).seed or 0
    digest = replace(arguments, seed=None).digest(bundle.digest)
    file = replaced_file(target, overwrite=asked.delivery.overwrite)
    # Beside a pipe or a device, which is no file, nothing is saved.
    saved = None if file is None else SavedSegments(file, digest, seed, drawn=arguments.seed is None)
    with status_line("reading …", shown=shown) as note:
        planned = plan(
            bundle,
            replace(
                arguments,
                seed=saved.seed if saved else seed,
                saved_segments=saved,
                progress=lambda progress: note(progress_text(progress)),
                cancel=token,
            ),
        )
        note("loading …")
        tts = loaded(bundle, asked.engine, note)
        note("prefill …")
        with interruptible(token):
            speech = tts.speak_plan(planned)
    writes = not speech.cancelled or (asked.delivery.keep_partial and len(speech.audio) > 0)
    clipped = 0
    if writes:
        overwrite = asked.delivery.overwrite
        clipped = write_audio(target, speech.audio, speech.sample_rate, overwrite=overwrite)
    if saved and not speech.cancelled:
        saved.discard()
    if shown and writes:
        # A stream may be standard output itself.
        typer.echo(spoken_line(target, speech, clipped), err=file is None)
    if speech.cancelled:
        count = saved.count if saved else 0
        done = f"; {count} segments are saved: the same command resumes" if count else ""
        raise Cancelled(f"interrupted: {target} {'holds a part' if writes else 'was not written'}{done}")


def _stream(arguments: Arguments, bundle: Bundle, asked: Asked) -> None:
    sample_rate = bundle.architecture.output_sample_rate
    check_standard_output(sample_rate)
    token = CancelToken()
    planned = plan(bundle, replace(arguments, cancel=token))
    tts = loaded(bundle, asked.engine)
    with interruptible(token):
        written = write_raw_pcm(
            tts.stream_plan(planned, first_chunk_patches=1), sample_rate, quiet=asked.delivery.quiet
        )
    if not asked.delivery.quiet:
        seconds = written.samples / sample_rate
        typer.echo(f"{seconds:.2f} s of speech{_clipped_text(written.clipped)}", err=True)
    if token.cancelled:
        raise Cancelled("interrupted")


class Spoken(Protocol):
    """What is said of a speech when it is written."""

    @property
    def seed(self) -> int | None:
        """The seed that reproduces it."""

    @property
    def audio_seconds(self) -> float:
        """Seconds of speech."""

    @property
    def elapsed_seconds(self) -> float:
        """Seconds of work."""

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of speech."""


def spoken_line(target: Path, speech: Spoken, clipped: int) -> str:
    """The result of an utterance, on one line."""
    return (
        f"{target}: {speech.audio_seconds:.2f} s of speech in {speech.elapsed_seconds:.2f} s "
        f"(real-time factor {speech.real_time_factor:.2f}), seed {speech.seed}{_clipped_text(clipped)}"
    )


def _clipped_text(clipped: int) -> str:
    return f", {clipped} samples clipped" if clipped else ""
