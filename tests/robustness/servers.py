"""Servers with jobs as processes, which may be killed and whose calls to the system may fail."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2

from robustness.watched import child_environment

LONGEST_WAIT = 120.0
"""Seconds for one more segment of a job, or for its end."""
# What it imports is not counted.
PROGRAM = """
import sys
from robustness.commands import arm
from voxcpm_runtime.commands.cli import main
folder, log, call, error, *arguments = sys.argv[1:]
if folder:
    arm(folder, log, int(call), int(error))
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
    log: Path | str = "",
    call: int = -1,
    error: int = 0,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, and its URL, which is killed at the end.

    library: what counts its calls on files of jobs. log, call, error: as of `arm`.
    """
    watched = (jobs if library else "", log, call, error)
    given = ("serve", bundle, "--port", 0, "--voices-folder", jobs.parent / "voices", "--jobs-folder", jobs)
    preloaded = {"LD_PRELOAD": str(library)} if library else {}
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", PROGRAM),
            *map(str, (*watched, *given, "--precision", "int8", "--threads", 1)),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(VOXCPM_COREML_API_KEYS="", **preloaded),
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


def submitted(url: str, text: str) -> str:
    """The id of a new job; nothing if the server's disk refused it."""
    asked = {"model": "tts-1", "input": text, "response_format": "wav", "seed": 7}
    answer = httpx2.post(f"{url}/v1/audio/jobs", json=asked, timeout=60)
    if answer.status_code == 507:
        return ""
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def ended(url: str, id_: str) -> tuple[str, str]:
    """The state in which a job ended, and the whole answer."""
    job = {"state": ""}

    def is_over() -> bool:
        job.update(httpx2.get(f"{url}/v1/audio/jobs/{id_}", timeout=60).json())
        return job["state"] in ("done", "failed")

    wait_for(is_over)
    return job["state"], str(job)


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until it is true, for two minutes at most."""
    until = time.monotonic() + LONGEST_WAIT
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
