"""Commands that may be killed, or whose calls to the system may fail, each in a child that is forked from the watched
process: hundreds of commands cost hundreds of commands, not hundreds of starts of Python.
"""

import atexit
import ctypes
import importlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

from robustness.watched import Ended

LIMIT = 300.0
"""Timeout of a command in seconds."""
# Commands import some of these lazily: import them once here, not in each child.
MODULES = (
    "voxcpm_runtime.commands.batch",
    "voxcpm_runtime.commands.generate",
    "voxcpm_runtime.commands.voices",
    "voxcpm_runtime.backends.portable.step_model",
    "coremltools",
    "voxcpm_conversion.cli",
    "voxcpm_conversion.convert",
    "voxcpm_conversion.core_ml.packages",
)


@dataclass(frozen=True)
class CommandEnded:
    """How a command ended."""

    code: int
    """Exit code; the negative number of the signal that killed it."""
    err: str
    hung: bool


def arm(folder, log, call, error):
    """Have the preloaded library count calls on files below a folder, and disturb one. See `system_calls.c`.

    log: a file for a line of each call, or none. call: its number, from 0, or -1. error: its errno; 0 kills.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) if log else -1
    library = ctypes.CDLL(None)
    library.robustness_watch(os.fsencode(folder))
    library.robustness_arm(descriptor, ctypes.c_long(call), error)


def scene():
    """What runs a command: {"arguments", "folder", "environment"} and perhaps "kill_after" (seconds), or "call",
    "error" and "log", as of `arm`.
    """
    for name in MODULES:
        importlib.import_module(name)
    return lambda case: Ended("ended", json.dumps(_run(case)))


def _run(case):
    # Not TemporaryDirectory: an exiting child would remove it too.
    outputs = Path(tempfile.mkdtemp())
    child = os.fork()
    if not child:
        _become(case, outputs)
    ended = os.pidfd_open(child)
    after = case.get("kill_after")
    hung = False
    if not select.select([ended], [], [], LIMIT if after is None else after)[0]:
        hung = after is None
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(ended)
    err = outputs / "err"
    # A child killed immediately has not created it.
    said = err.read_text(errors="replace") if err.exists() else ""
    shutil.rmtree(outputs)
    return {"code": os.waitstatus_to_exitcode(status), "err": said, "hung": hung}


def _become(case, outputs):
    """The child: run the command and exit. Never returns."""
    code = 70
    try:
        os.setsid()
        for number, name in enumerate((os.devnull, outputs / "out", outputs / "err")):
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY, 0o600)
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.update(case["environment"])
        os.environ.pop("LD_PRELOAD", None)
        # The parent has its own already.
        tempfile.tempdir = None
        os.chdir(case["folder"])
        if "call" in case or "log" in case:
            arm(case["folder"], case.get("log", ""), case.get("call", -1), case.get("error", 0))
        from voxcpm_runtime.commands.cli import main

        code = main(case["arguments"])
    except BaseException:  # noqa: BLE001 - as an unhandled exception
        traceback.print_exc()
    finally:
        try:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
