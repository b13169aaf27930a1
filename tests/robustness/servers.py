"""Servers with jobs as processes, whose calls to the system may fail."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2

LONGEST_WAIT = 120.0
"""Seconds for one more segment of a job, or for its end."""
# What it imports is not counted: it is armed, as a child of `children.py` is, before the command.
PROGRAM = """
import ctypes, os, sys
from voxcpm_runtime.commands.cli import main
folder, log, call, error, *arguments = sys.argv[1:]
if folder:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) if log else -1
    library = ctypes.CDLL(None)
    library.robustness_watch(os.fsencode(folder))
    library.robustness_arm(descriptor, ctypes.c_long(int(call)), int(error))
sys.exit(main(arguments))
"""


class NotBegun(Exception):
    """A server that ended before it listened: its exit code and what it said."""


@contextlib.contextmanager
def served(
    bundle: Path,
    jobs: Path,
    *,
    library: Path | None = None,
    log: Path | None = None,
    call: int = -1,
    error: int = 0,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, and its URL, which is killed at the end.

    library: what counts its calls on files of jobs. log, call, error: as of `children.Case`.
    """
    watched = (jobs, log or "", call, error) if library else ("", "", -1, 0)
    given = ("serve", bundle, "--port", 0, "--voices-folder", jobs.parent / "voices", "--jobs-folder", jobs)
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PROGRAM,
            *map(str, (*watched, *given)),
            "--precision",
            "int8",
            "--threads",
            "1",
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "VOXCPM_COREML_API_KEYS": "", **({"LD_PRELOAD": str(library)} if library else {})},
    )
    try:
        line = process.stderr.readline() if process.stderr else ""
        if not line.startswith("listening on http://127.0.0.1:"):
            _, rest = process.communicate(timeout=LONGEST_WAIT)
            raise NotBegun(process.returncode, line + rest)
        yield process, line.split()[2]
    finally:
        process.kill()
        process.communicate()


def ended(url: str, id_: str) -> tuple[str, str]:
    """The state in which a job ended, and the whole answer."""
    until = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < until:
        job = httpx2.get(f"{url}/v1/audio/jobs/{id_}", timeout=60).json()
        if job["state"] in ("done", "failed"):
            return str(job["state"]), str(job)
        time.sleep(0.1)
    return "hanging", ""
