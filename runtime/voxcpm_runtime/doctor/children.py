"""Child processes that may crash, hang or be killed: starting one, reading its events, and always ending it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import IO, Literal, NamedTuple

from voxcpm_constants.json_files import parsed_json
from voxcpm_runtime.doctor.worker import Event, Request

_PROGRAM = "voxcpm_runtime.doctor.worker"
_TAIL_BYTES = 4096
_START_SECONDS = 60.0
"""Extra seconds for a child before its first event: importing coremltools is slow."""


class Ending(NamedTuple):
    """How a child process ended."""

    outcome: Literal["done", "crashed", "hung"]
    message: str = ""
    """For a crash: the signal or the exit code, and the last line on standard error since the last event."""


def run_child(request: Request, heard: Callable[[Event], None]) -> Ending:
    """Run a child process and pass on its events. It is killed if a step model takes longer than `request.limit`,
    which starts again with each "running" event, and when this function ends: Ctrl-C does not reach it.
    """
    receiving, sending = os.pipe()
    with os.fdopen(receiving, "rb", buffering=0) as reported, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", _PROGRAM, request.model_dump_json(), str(sending)],
            pass_fds=(sending,),
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            # A session of its own, so that its children are killed with it.
            start_new_session=True,
            # A file in the working directory must not be imported as a module (Python 3.11).
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        os.close(sending)
        said: int | None = None
        try:
            for event in _events(reported, request.limit):
                if event is None:
                    begun = said is not None
                    within = request.limit + (0 if begun else _START_SECONDS)
                    return Ending("hung", f"{'no answer' if begun else 'did not start'} within {within:g} s")
                said = errors.seek(0, os.SEEK_END)
                heard(event)
            code = child.wait(request.limit)
        except subprocess.TimeoutExpired:
            return Ending("hung", f"did not end within {request.limit:g} s")
        finally:
            # macOS refuses a signal to a process group with only a zombie.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        return Ending("done") if code == 0 else Ending("crashed", _last_words(code, errors, said or 0))


def _events(reported: IO[bytes], limit: float) -> Iterator[Event | None]:
    """Events until the child closes the pipe; None if a step model, or the first event, takes too long."""
    deadline, rest = time.monotonic() + _START_SECONDS + limit, b""
    while True:
        readable, _, _ = select.select([reported], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            yield None
            return
        received = reported.read(65536)
        if not received:
            return
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            event = parsed_json(line)
            if event.get("stage") in ("load", "running"):
                deadline = time.monotonic() + limit
            yield event


def _last_words(code: int, errors: IO[bytes], said: int) -> str:
    """How the child ended, and the last line of its output after the first `said` bytes."""
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    errors.seek(max(said, errors.seek(0, os.SEEK_END) - _TAIL_BYTES))
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    return f"{name}: {last}" if last else name
