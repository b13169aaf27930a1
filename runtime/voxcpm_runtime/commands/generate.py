"""The commands `generate`, and upstream's `design` and `clone`, which are special cases of it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from voxcpm_constants.errors import InputError
from voxcpm_constants.progress_lines import status_line
from voxcpm_constants.user_folders import is_hub_id
from voxcpm_runtime.argument_types import shown
from voxcpm_runtime.audio.files import check_output_path, write_audio, write_audio_file
from voxcpm_runtime.audio.pcm import clipped_samples, pcm16
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.commands.shared_arguments import (
    BundleArgument,
    CheckpointArguments,
    Engine,
    OutputArguments,
    RecordingArguments,
    TextArguments,
    VoiceArguments,
    input_file,
    load_voxcpm,
    open_with_engine,
    takes_groups,
)
from voxcpm_runtime.commands.status_line import clipped_text, progress_text, speech_facts, speech_summary
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.planning import plan
from voxcpm_runtime.speech.request import Cancelled, CancelToken, Request
from voxcpm_runtime.speech.saved_segments import SavedSegments, segments_folder
from voxcpm_runtime.storage.atomic_file import replaced_file
from voxcpm_runtime.text.lexicon import lexicon_entries
from voxcpm_runtime.words.files import TIMESTAMP_ENDINGS, timestamps_file
from voxcpm_runtime.words.words import Word

STANDARD_OUTPUT = "-"
# `design` accepts these options only to reject them by name.
_VOICE_OPTIONS = ("voice", *RecordingArguments.__annotations__)


@dataclass(frozen=True)
class GenerateFlags(CheckpointArguments, Engine, OutputArguments, VoiceArguments, TextArguments):
    """The arguments of `generate`, `design` and `clone`, except for bundle and options; `TextArguments` come first."""

    together: Annotated[
        int,
        typer.Option(
            help="Speak this many segments of a long text at once, with the same samples as one by one, but not with "
            "-o -; the bundle must have been converted with --batch.",
            min=1,
        ),
    ] = 1


@takes_groups
def generate(*, bundle: BundleArgument = None, flags: GenerateFlags, options: GenerationOptions) -> None:
    """Generate an audio file from a text of any length, in any mode of the bundle."""
    _speak(bundle, flags, options)


@functools.partial(takes_groups, hidden=_VOICE_OPTIONS)
def design(*, bundle: BundleArgument = None, flags: GenerateFlags, options: GenerationOptions) -> None:
    """Generate speech in a voice described in words (VoxCPM2), or in the checkpoint's own voice."""
    given = [f"--{name.replace('_', '-')}" for name in _VOICE_OPTIONS if getattr(flags, name) is not None]
    if given:
        raise InputError(
            f"design makes a voice from a description, not from a recording, got {', '.join(given)}; use clone"
        )
    _speak(bundle, flags, options)


@takes_groups
def clone(*, bundle: BundleArgument = None, flags: GenerateFlags, options: GenerationOptions) -> None:
    """Generate speech in the voice of a recording (a prompt, or with VoxCPM2 a reference), or in a saved voice."""
    if (flags.voice, flags.prompt, flags.reference) == (None, None, None):
        raise InputError(
            "clone needs a recording: --reference, or --prompt with --prompt-text or --prompt-file, or a --voice; "
            "without one, use generate or design"
        )
    _speak(bundle, flags, options)


def _speak(bundle: str | None, flags: GenerateFlags, options: GenerationOptions) -> None:
    # Check as much as possible before opening the bundle, and the rest before loading its models.
    # Not pathlib, which raises for a text that is too long to be a file name.
    is_folder = bundle is None or is_hub_id(bundle) or os.path.isdir(bundle)  # noqa: PTH112
    if not is_folder and flags.text is None and flags.text_file is None:
        raise InputError(
            f"{shown(bundle)}: expected a bundle, but this is not a folder; to speak it, use --text or --text-file"
        )
    target = None
    inputs = [input_file(flags.text_file), *flags.files()]
    if flags.output != STANDARD_OUTPUT:
        target = check_output_path(flags.output, inputs=inputs, overwrite=flags.overwrite)
    if flags.timestamps is not None:
        check_output_path(
            flags.timestamps, inputs=[*inputs, target], overwrite=flags.overwrite, endings=TIMESTAMP_ENDINGS
        )
    request = Request(
        text=flags.text_to_speak(),
        recordings=flags.recordings(),
        control=flags.control,
        lexicon=lexicon_entries(flags.lexicon) if flags.lexicon else {},
        options=options,
        seed=flags.seed,
        keep_partial=True,
        parallel_segments=flags.together,
    )
    request.recordings.check_files()
    opened_bundle = open_with_engine(bundle, flags, checkpoint=flags)
    if target is None:
        _stream(request, opened_bundle, flags)
    else:
        _write(request, target, opened_bundle, flags)


def _write(request: Request, target: Path, bundle: Bundle, flags: GenerateFlags) -> None:
    """Speak into a file. A killed or interrupted run leaves its finished segments next to it, for the next one."""
    token = CancelToken()
    file = replaced_file(target, overwrite=flags.overwrite)
    with status_line("reading …", shown=not flags.quiet) as note:
        watched = replace(request, cancel=token, progress=lambda progress: note(progress_text(progress)))
        planned = _resumed(plan(bundle, watched), file)
        saved = planned.request.saved_segments
        note("loading …")
        tts = load_voxcpm(bundle, flags, note)
        note("prefill …")
        with interruptible(token):
            speech = tts.speak_plan(planned)
    writes = not speech.cancelled or (flags.keep_partial and len(speech.audio) > 0)
    if writes:
        clipped = write_audio(target, speech.audio, speech.sample_rate, overwrite=flags.overwrite)
        _write_timestamps(flags, speech.words if flags.timestamps else (), planned)
        summary = f"{target}: {speech_summary(speech, clipped)}"
        if flags.as_json:
            summary = json.dumps({"output": str(target), **speech_facts(speech)}, ensure_ascii=False)
        if flags.as_json or not flags.quiet:
            # The output may be standard output itself.
            typer.echo(summary, err=file is None)
    if speech.cancelled:
        count = saved.count if saved else 0
        done = f"; {count} segments are saved: run the same command to resume" if count else ""
        raise Cancelled(f"interrupted: {target} {'is incomplete' if writes else 'was not written'}{done}")
    if saved:
        saved.discard()


def _resumed(planned: Plan, file: Path | None) -> Plan:
    """The plan with the segments that an earlier run saved next to its file, and that run's seed if none is given.

    Unchanged if there is nothing to save or to resume; nothing can be saved next to a pipe or a device.
    """
    if file is None or (planned.is_one_segment and not segments_folder(file).exists()):
        return planned
    request = planned.request
    saved = SavedSegments(file, planned.digest, planned.seed or 0, drawn=request.seed is None)
    return replace(planned, seed=saved.seed, request=replace(request, saved_segments=saved))


def _stream(request: Request, bundle: Bundle, flags: GenerateFlags) -> None:
    """Speak to standard output as 16-bit little-endian mono, each chunk as soon as it is spoken."""
    rate, quiet = bundle.architecture.output_sample_rate, flags.quiet
    if flags.as_json:
        raise InputError("--json: with -o - standard output has the samples; name a file")
    if sys.stdout is None or sys.stdout.closed:
        raise InputError("-o -: standard output is closed; name a file")
    if sys.stdout.isatty():
        raise InputError(
            "-o -: standard output is a terminal; pipe it into a player, as in: "
            f"… | aplay -f S16_LE -c 1 -r {rate}"
        )
    token = CancelToken()
    words: list[Word] = []
    on_words = None if flags.timestamps is None else words.extend
    planned = plan(bundle, replace(request, cancel=token, on_words=on_words))
    tts = load_voxcpm(bundle, flags)
    if not quiet:
        # Raw samples have no header.
        typer.echo(f"raw PCM: 16-bit little-endian, mono, {rate} Hz", err=True)
    samples = clipped = 0
    with interruptible(token):
        for chunk in tts.stream_plan(planned, first_chunk_patches=1):
            sys.stdout.buffer.write(pcm16(chunk).astype("<i2").tobytes())
            sys.stdout.buffer.flush()
            samples += len(chunk)
            clipped += clipped_samples(chunk)
    _write_timestamps(flags, words, planned)
    if not quiet:
        typer.echo(f"{samples / rate:.2f} s of speech{clipped_text(clipped)}", err=True)
    if token.cancelled:
        raise Cancelled("interrupted")


def _write_timestamps(flags: GenerateFlags, words: Sequence[Word], planned: Plan) -> None:
    if flags.timestamps is not None:
        content = timestamps_file(words, Path(flags.timestamps).suffix.lower(), planned.text or "")
        write_audio_file(flags.timestamps, content, overwrite=flags.overwrite)


@contextlib.contextmanager
def interruptible(token: CancelToken) -> Iterator[None]:
    """A context in which the first Ctrl-C cancels the token, so that finished work is saved; the next interrupts."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if token.cancelled:
            signal.default_int_handler(number, frame)
        token.cancel()

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
