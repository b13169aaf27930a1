"""Servers with jobs as processes, which may be killed."""

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
PROGRAM = "import sys; from voxcpm_runtime.commands.cli import main; sys.exit(main())"


@contextlib.contextmanager
def served(bundle: Path, jobs: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, and its URL, which is killed at the end."""
    folders = ("--voices-folder", jobs.parent / "voices", "--jobs-folder", jobs)
    given = ("serve", bundle, "--port", 0, *folders, "--precision", "int8", "--threads", 1)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, given)],
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(VOXCPM_COREML_API_KEYS=""),
    )
    try:
        line = process.stderr.readline() if process.stderr else ""
        assert line.startswith("listening on http://127.0.0.1:"), line
        yield process, line.split()[2]
    finally:
        process.kill()
        process.communicate()


def submitted(url: str, text: str) -> str:
    """The id of a new job."""
    asked = {"model": "tts-1", "input": text, "response_format": "wav", "seed": 7}
    answer = httpx2.post(f"{url}/v1/audio/jobs", json=asked, timeout=60)
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
