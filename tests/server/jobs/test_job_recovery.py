"""Jobs of a `voxcpm-coreml serve` process that is killed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from waiting import until


@pytest.mark.robustness
def test_job_resumes_after_finished_segments_when_its_server_was_killed(
    started: Callable[..., Any], jobs: Any, long_samples: np.ndarray, tmp_path: Path
) -> None:
    process, url = started()
    folder = tmp_path / "jobs"
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
    # They are deleted only when the job is done.
    assert saved.items() <= again.items() or client.job(id_)["state"] == "done"
    assert client.ended(id_)["error"] is None
    assert np.array_equal(client.samples(id_), long_samples)
    until(lambda: {path.name for path in (folder / id_).iterdir()} == {"speech.wav", "speech.srt"})
