"""`generate`, and upstream's commands for parts of it: `design` and `clone`."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import FrameType

import typer

from voxcpm_constants.errors import InputError
from voxcpm_constants.user_folders import is_hub_id
from voxcpm_runtime.argument_types import shown
from voxcpm_runtime.audio.files import check_output_path, write_audio
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.commands.engine import loaded, opened
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
from voxcpm_runtime.commands.status_line import clipped_text, progress_text, speech_summary, status_line
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.arguments import Arguments
from voxcpm_runtime.speech.cancellation import Cancelled, CancelToken
from voxcpm_runtime.speech.plan import first_seed, plan
from voxcpm_runtime.speech.saved_segments import SavedSegments
from voxcpm_runtime.storage.whole_file import replaced_file

_MAX_QUOTED = 200
"""Characters of a text that an error quotes in full."""
# `design` takes these options only to refuse them by name.
_OF_A_VOICE = ("voice", *(field.name for field in fields(RecordingArguments)))


@dataclass(frozen=True)
class Asked:
    """The arguments of `generate`, `design` and `clone`, except for the bundle."""

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
    """Speak in a voice described in words (VoxCPM2), or without a description in the checkpoint's own."""
    given = [f"--{name.replace('_', '-')}" for name in _OF_A_VOICE if getattr(asked.voice, name) is not None]
    if given:
        raise InputError(
            f"design makes a voice from a description, not from a recording, got {', '.join(given)}; use clone"
        )
    _speak("design", bundle, asked)


@takes_groups()
def clone(*, bundle: BundleArgument = None, asked: Asked) -> None:
    """Speak in the voice of a recording (a prompt to continue, with VoxCPM2 also a reference), or in a saved voice."""
    voice = asked.voice
    if (voice.voice, voice.prompt, voice.reference) == (None, None, None):
        raise InputError(
            "clone needs a recording: --reference, or --prompt with --prompt-text or --prompt-file, or a --voice; "
            "without one, use generate or design"
        )
    _speak("clone", bundle, asked)


def _speak(command: str, bundle: str | None, asked: Asked) -> None:
    # Check as much as possible before the bundle is opened, and the rest before its models are loaded.
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
        keep_partial=True,
    )
    arguments.recordings.check_files()
    opened_bundle = opened(bundle, asked.engine, checkpoint=asked.checkpoint)
    if target is None:
        _stream(arguments, opened_bundle, asked)
    else:
        _write(arguments, target, opened_bundle, asked)


def _refuse_text_as_bundle(command: str, bundle: str) -> None:
    """Raises InputError if the only argument is not a folder: it is probably the text to speak."""
    # pathlib raises for a text that is too long to be a file name.
    if not os.path.isdir(bundle):  # noqa: PTH112
        option = "--text-file" if os.path.isfile(bundle) else "--text"  # noqa: PTH113
        words = shlex.quote(bundle) if len(bundle) <= _MAX_QUOTED else '"…"'
        raise InputError(
            f"{shown(bundle)} was taken as the bundle but is not a folder; to speak it: "
            f"voxcpm-coreml {command} {option} {words}"
        )


def _write(arguments: Arguments, target: Path, bundle: Bundle, asked: Asked) -> None:
    shown = not asked.delivery.quiet
    token = CancelToken()
    seed = first_seed(arguments.seed) or 0
    digest = replace(arguments, seed=None).digest(bundle.digest)
    file = replaced_file(target, overwrite=asked.delivery.overwrite)
    # Segments are saved next to a file, not next to a pipe or a device.
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
        # The output may be standard output itself.
        typer.echo(f"{target}: {speech_summary(speech, clipped)}", err=file is None)
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
        typer.echo(f"{seconds:.2f} s of speech{clipped_text(written.clipped)}", err=True)
    if token.cancelled:
        raise Cancelled("interrupted")


@contextlib.contextmanager
def interruptible(token: CancelToken) -> Iterator[None]:
    """In this context the first Ctrl-C cancels the token, so that finished work is saved; a second one interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        if token.cancelled:
            signal.default_int_handler(number, frame)
        token.cancel()

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
