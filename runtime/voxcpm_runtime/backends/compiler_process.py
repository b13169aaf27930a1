"""A child process for what may end its process, hang, or hold Python's lock for minutes: Apple's compilers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from typing import IO


def run_child(module: str, *arguments: str, timeout: float | None = None) -> tuple[int, str]:
    """Run a module of this project as a program: its exit code, and why it ended, on one line.

    It is ended with this function, however that ends. Raises subprocess.TimeoutExpired after `timeout` seconds.
    """
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            # Python 3.11: a file of the user's working directory must not be taken for a module.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        with child:
            try:
                code = child.wait(timeout)
            except BaseException:
                child.kill()
                child.wait()
                raise
        return code, _last_words(code, output)


def end_with_the_parent() -> None:
    """In the child: end when the parent has ended, or at Ctrl-C, even while native code holds Python's lock.

    A second process waits for the end of standard input, since no thread of this one could. Call it before anything
    else: a process that has threads should not fork.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    child = os.getpid()
    if os.fork() == 0:
        os.read(sys.stdin.fileno(), 1)
        if os.getppid() == child:
            os.kill(child, signal.SIGKILL)
        os._exit(0)


def _last_words(code: int, output: IO[bytes]) -> str:
    """Why a child ended: the first error that it names, or the signal or exit code and its last line."""
    output.seek(0)
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines()]
    errors = [line.partition("error: ")[2] for line in lines if "error: " in line]
    ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return next(iter(errors), ": ".join((ended, *filter(None, lines[-1:]))))
