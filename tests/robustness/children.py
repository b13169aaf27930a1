"""Commands in processes of their own that may be killed, or whose calls to the system may fail.

A parent process imports everything once and forks a child for each command: hundreds of commands cost hundreds of
commands, not hundreds of starts of Python. Run as a program, this module is that parent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LIMIT = 300.0
"""Seconds after which a command counts as hanging."""


@dataclass(frozen=True)
class Case:
    """One command and what happens to it."""

    arguments: tuple[str, ...]
    folder: Path
    """The working directory; calls on files below it and below `watched` are counted."""
    environment: dict[str, str] = field(default_factory=dict)
    watched: tuple[Path, ...] = ()
    kill_after: float | None = None
    """Seconds to the SIGKILL; None for none."""
    call: int | None = None
    """Number of the call to the system, from 0, that fails, or at which the process is killed; None for none."""
    error: int = 0
    """The errno of that call; 0 kills the process there."""
    log: Path | None = None
    """A file for a line of each call: its kind and path."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """Exit code; the negative number of the signal that killed it."""
    out: str
    err: str
    seconds: float
    hung: bool


class Children:
    """The parent process, from this one's side."""

    def __init__(self, library: Path | None, *, modules: tuple[str, ...] = ()) -> None:
        """Start it. library: what counts and disturbs calls to the system. modules: what it imports once."""
        tests = Path(__file__).parents[1]
        path = os.pathsep.join([str(tests), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        if library is not None:
            environment["LD_PRELOAD"] = str(library)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "robustness.children", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, case: Case) -> Ended:
        """Run one command to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(case), default=str) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the parent of the commands has ended"
        return Ended(**json.loads(answer))

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=60)


def _serve(modules: list[str]) -> None:
    """Answer each line of standard input, a case, with a line: how it ended."""
    import importlib

    for name in modules:
        importlib.import_module(name)
    # The commands' output is not the answers'.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(_run(json.loads(line))) + "\n")
        answers.flush()


def _run(case: dict[str, Any]) -> dict[str, Any]:
    import select
    import shutil
    import signal
    import tempfile
    import time

    # Not TemporaryDirectory: a child that ends would remove it, too.
    outputs = Path(tempfile.mkdtemp())
    began = time.monotonic()
    child = os.fork()
    if not child:
        _become(case, outputs)
    ended = os.pidfd_open(child)
    after = case["kill_after"]
    hung = False
    if not select.select([ended], [], [], LIMIT if after is None else after)[0]:
        hung = after is None
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(ended)
    seconds = time.monotonic() - began
    # One that is killed at once has not made them.
    out, err = (_text(outputs / kind) for kind in ("out", "err"))
    shutil.rmtree(outputs)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "out": out, "err": err, "seconds": seconds, "hung": hung}


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _become(case: dict[str, Any], outputs: Path) -> None:
    """The child: run the command and end. It never returns."""
    import atexit
    import tempfile
    import traceback

    code = 70
    try:
        os.setsid()
        # All three are of this command alone, as from a shell.
        for number, (name, flags) in enumerate(
            {os.devnull: os.O_RDONLY, outputs / "out": os.O_WRONLY, outputs / "err": os.O_WRONLY}.items()
        ):
            descriptor = os.open(name, flags | (os.O_CREAT if number else 0), 0o600)
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.update(case["environment"])
        os.environ.pop("LD_PRELOAD", None)
        # The parent has asked for its own already.
        tempfile.tempdir = None
        os.chdir(case["folder"])
        _arm(case)
        from voxcpm_runtime.commands.cli import main

        code = main(case["arguments"])
    except BaseException:  # noqa: BLE001 - what a process shows when it ends by itself
        traceback.print_exc()
    finally:
        try:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _arm(case: dict[str, Any]) -> None:
    if case["call"] is None and case["log"] is None:
        return
    import ctypes

    library = ctypes.CDLL(None)
    log = -1
    if case["log"] is not None:
        log = os.open(case["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for folder in (case["folder"], *case["watched"]):
        library.robustness_watch(os.fsencode(folder))
    call = ctypes.c_long(-1 if case["call"] is None else case["call"])
    library.robustness_arm(log, call, case["error"])


if __name__ == "__main__":
    _serve(sys.argv[1:])
