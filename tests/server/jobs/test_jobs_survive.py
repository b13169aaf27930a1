"""Jobs of `voxcpm-coreml serve` as a process that is killed, that has no room on its disk, and that has many guests."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile

from voxcpm_runtime import pcm16
from waiting import until

SENTENCE = "one two three four five six seven."
LONG = "\n\n".join([f"{SENTENCE} {SENTENCE}"] * 4)
PROGRAM = "import sys; from voxcpm_runtime.commands.cli import main; sys.exit(main())"
# More than a request or a short speech, less than a finished segment.
LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); "


def submit(url: str, text: str) -> str:
    said = {"model": "tts-1", "input": text, "response_format": "wav", "seed": 7}
    answer = httpx2.post(f"{url}/v1/audio/jobs", json=said, timeout=60)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def job_when(url: str, id_: str, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The job once that is so."""

    def found() -> Any:
        job = httpx2.get(f"{url}/v1/audio/jobs/{id_}", timeout=60).json()
        return condition(job) and job

    return dict(until(found, 120))


def test_a_job_goes_on_behind_its_finished_segments_after_a_kill(
    started: Callable[..., Any], tts: Any, tmp_path: Path
) -> None:
    process, url = started()
    id_ = submit(url, LONG)
    job_when(url, id_, lambda job: job["segments_done"])
    process.kill()
    process.wait()
    folder = tmp_path / "jobs" / id_
    saved = {path: path.stat().st_mtime_ns for path in folder.rglob("*.segment")}
    assert saved
    assert not (folder / "speech.wav").exists()

    _, url = started()
    now = job_when(url, id_, lambda job: job["state"] == "running")
    assert now["segments_done"] >= len(saved)
    again = {path: path.stat().st_mtime_ns for path in folder.rglob("*.segment")}
    # They are deleted when the job is done, and not before.
    done = httpx2.get(f"{url}/v1/audio/jobs/{id_}").json()["state"] == "done"
    assert saved.items() <= again.items() or done
    assert job_when(url, id_, lambda job: job["state"] in ("done", "failed"))["error"] is None
    content = httpx2.get(f"{url}/v1/audio/jobs/{id_}/audio").content
    audio, _ = soundfile.read(io.BytesIO(content), dtype="int16")
    assert np.array_equal(audio, pcm16(tts.generate(LONG, seed=7)))
    until(lambda: [path.name for path in folder.iterdir()] == ["speech.wav"])


@pytest.mark.long
def test_without_room_for_a_segment_the_job_fails_and_the_server_goes_on(
    started: Callable[..., Any], tmp_path: Path
) -> None:
    process, url = started(before=LIMITED)

    failed = job_when(url, submit(url, LONG), lambda job: job["state"] in ("done", "failed"))
    assert failed["error"]["code"] == "storage"
    assert str(tmp_path) not in failed["error"]["message"]
    assert not list(tmp_path.rglob("*.part"))
    assert not list(tmp_path.rglob("*.segment"))
    id_ = submit(url, SENTENCE)
    assert job_when(url, id_, lambda job: job["state"] in ("done", "failed"))["state"] == "done"

    process.terminate()
    _, rest = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "File too large" in rest
    assert "Traceback" not in rest


def test_two_servers_do_not_share_a_folder_of_jobs(started: Callable[..., Any], tmp_path: Path) -> None:
    started()
    given = ["serve", "--port", "0", "--jobs-folder", str(tmp_path / "jobs")]
    second = subprocess.run(
        [sys.executable, "-c", PROGRAM, *given], capture_output=True, text=True, timeout=60, check=False
    )

    assert second.returncode == 2
    assert second.stderr == (
        f"error: {tmp_path / 'jobs'}: another server uses this folder of jobs; give each its --jobs-folder\n"
    )
