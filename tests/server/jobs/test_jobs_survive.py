"""Jobs of `voxcpm-coreml serve` as a process that is killed, or that has no room on its disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from waiting import until

PROGRAM = "import sys; from voxcpm_runtime.commands.cli import main; sys.exit(main())"
# More than a request or a short speech, less than a finished segment.
LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); "


def test_a_job_resumes_after_its_finished_segments_when_its_server_was_killed(
    started: Callable[..., Any], jobs: Any, long_samples: np.ndarray, tmp_path: Path
) -> None:
    process, url = started()
    # Two servers do not share a folder of jobs.
    folder = tmp_path / "jobs"
    given = ["serve", "--port", "0", "--jobs-folder", str(folder)]
    second = subprocess.run(
        [sys.executable, "-c", PROGRAM, *given], capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 2
    assert second.stderr == (
        f"error: {folder}: another server uses this folder; give each server its own --jobs-folder\n"
    )

    client = jobs(url)
    id_ = client.submitted(input=client.long)
    client.when(id_, lambda job: job["segments_done"])
    process.kill()
    process.wait()
    saved = {path: path.stat().st_mtime_ns for path in (folder / id_).rglob("*.segment")}
    assert saved
    assert not (folder / id_ / "speech.wav").exists()

    client = jobs(started()[1])
    resumed = client.when(id_, lambda job: job["state"] == "running")
    assert resumed["segments_done"] >= len(saved)
    again = {path: path.stat().st_mtime_ns for path in (folder / id_).rglob("*.segment")}
    # They are deleted when the job is done, and not before.
    assert saved.items() <= again.items() or client.job(id_)["state"] == "done"
    assert client.ended(id_)["error"] is None
    assert np.array_equal(client.samples(id_), long_samples)
    until(lambda: [path.name for path in (folder / id_).iterdir()] == ["speech.wav"])


@pytest.mark.long
def test_without_room_for_a_segment_the_job_fails_and_the_server_continues(
    started: Callable[..., Any], jobs: Any, tmp_path: Path
) -> None:
    process, url = started(before=LIMITED)
    client = jobs(url)
    failed = client.ended(client.submitted(input=client.long))
    assert failed["error"]["code"] == "storage"
    assert str(tmp_path) not in failed["error"]["message"]
    assert not list(tmp_path.rglob("*.part"))
    assert not list(tmp_path.rglob("*.segment"))
    assert client.ended(client.submitted())["state"] == "done"

    process.terminate()
    _, rest = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "File too large" in rest
    assert "Traceback" not in rest
