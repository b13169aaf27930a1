"""`-o -`: speech on standard output as it is spoken, piped into a player.

voxcpm-coreml generate --text "Hello." -o - | aplay -f S16_LE -c 1 -r 44100
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import NamedTuple

import typer

from voxcpm_constants.errors import InputError, os_reason
from voxcpm_runtime.audio.pcm import Audio, clipped_samples, pcm16

STANDARD_OUTPUT = "-"
PIPE_CLOSED = 141
"""Exit code if the reader has closed the pipe: 128 + SIGPIPE, as a shell reports it."""


class Written(NamedTuple):
    """Counts of the samples that were written."""

    samples: int
    clipped: int
    """How many of them were outside [-1, 1]."""


def check_standard_output(sample_rate: int) -> None:
    """Raises InputError if standard output is a terminal, or is missing."""
    if sys.stdout is None or sys.stdout.closed:
        raise InputError("-o -: there is no standard output to write to; name a file")
    if sys.stdout.isatty():
        raise InputError(
            "-o -: standard output is a terminal; pipe it into a player, as in: "
            f"… | aplay -f S16_LE -c 1 -r {sample_rate}"
        )


def write_raw_pcm(chunks: Iterable[Audio], sample_rate: int, *, quiet: bool = False) -> Written:
    """Write chunks (samples,) to standard output as 16-bit little-endian mono, each as soon as it is made.

    Raw samples have no header, so a line on standard error gives their format, unless `quiet`. Raises typer.Exit with
    PIPE_CLOSED if the reader has closed the pipe, and InputError if writing fails otherwise.
    """
    if not quiet:
        typer.echo(f"raw PCM: 16-bit little-endian, mono, {sample_rate} Hz", err=True)
    samples = clipped = 0
    for chunk in chunks:
        _write(pcm16(chunk).astype("<i2").tobytes())
        samples += len(chunk)
        clipped += clipped_samples(chunk)
    return Written(samples, clipped)


def _write(content: bytes) -> None:
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except OSError as error:
        _discard_rest()
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(PIPE_CLOSED) from None
        raise InputError(f"standard output: cannot be written ({os_reason(error)})") from None


def _discard_rest() -> None:
    """Redirect standard output to /dev/null: at exit Python flushes it, and would report the error again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
