"""Jobs that wait for their bundle, or for a disk that refuses."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from voxcpm_runtime import BundleError
from voxcpm_runtime.voices import voice
from voxcpm_server.application import create_app
from voxcpm_server.errors import ApiError
from voxcpm_server.jobs import execution as jobs_module
from voxcpm_server.jobs import speaking as job_speaking
from voxcpm_server.jobs.store import DONE, FAILED, QUEUED, JobStore
from voxcpm_server.rooms import AllSettings as Settings
from voxcpm_server.speech.served_bundles import Bundles
from waiting import until

SAID = {
    "model": "tts-1", "input": "one two three.", "response_format": "wav", "seed": 7, "voice": "default",
}  # fmt: skip

SENTENCE = "one two three four five six seven."
LONG = "\n\n".join([f"{SENTENCE} {SENTENCE}"] * 4)


def stored(folder: Path, model: str = "tts-1", text: str = SAID["input"]) -> tuple[str, Path]:
    """A job that waits in a folder, and a finished segment of it."""
    store = JobStore(folder)
    job = store.add(store.new_folder(), "", {**SAID, "model": model, "input": text}, 7, 1)
    segment = store.path(job.id) / ".speech.wav.segments" / "0.segment"
    segment.parent.mkdir()
    segment.write_bytes(b"finished")
    store.close()
    return job.id, segment


def test_a_start_without_its_bundle_leaves_every_job_as_it_was(tmp_path: Path) -> None:
    id_, segment = stored(tmp_path / "jobs")
    begun: list[Exception | None] = []

    def missing() -> Any:
        raise BundleError("/nothere: there is no bundle")

    settings = Settings(jobs_folder=tmp_path / "jobs", voices_folder=tmp_path / "voices")
    app = create_app(missing, settings, when_begun=begun.append)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        until(lambda: begun)
        # Long enough for a worker to have taken the job.
        for _ in range(20):
            assert client.get(f"/v1/audio/jobs/{id_}").json()["state"] == QUEUED
            time.sleep(0.05)
    assert isinstance(begun[0], BundleError)
    assert segment.is_file()


def test_a_job_waits_for_its_bundle_and_others_go_on(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "FIRST_PAUSE", 0.2)
    id_, segment = stored(tmp_path / "jobs")
    lease = Bundles.lease
    refused = [id_]
    refusals: list[float] = []

    async def refuse(self: Any, name: str | None = None) -> Any:
        if name == "tts-1" and refused:
            refusals.append(time.monotonic())
            raise ApiError(503, "damaged", code="model_unavailable")
        return await lease(self, name)

    monkeypatch.setattr(Bundles, "lease", refuse)
    running = serve()
    url = f"{running.url}/v1/audio/jobs"
    other = httpx2.post(url, json={**SAID, "model": "tts-1-hd"}, timeout=60).json()["id"]
    until(lambda: httpx2.get(f"{url}/{other}").json()["state"] == "done", 60)
    waits = httpx2.get(f"{url}/{id_}").json()
    assert (waits["state"], waits["error"]["code"]) == ("waiting", "model_unavailable")
    assert segment.is_file()
    # Each pause is twice as long as the one before.
    first, second, third = until(lambda: len(refusals) > 2 and refusals[:3])
    assert second - first >= 0.2
    assert third - second >= 0.4
    refused.clear()
    until(lambda: httpx2.get(f"{url}/{id_}").json()["state"] == "done", 60)
    assert httpx2.get(f"{url}/{id_}").json()["error"] is None


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """refusing(times, *states): that many changes of a job to one of these states are refused; returns those so far."""
    monkeypatch.setattr(jobs_module, "FIRST_PAUSE", 0.1)
    change, refused = JobStore.change, list[str]()

    def refusing(times: int, *states: str) -> list[str]:
        def refuse(self: JobStore, id_: str, **values: Any) -> None:
            if values.get("state") in states and len(refused) < times:
                refused.append(values["state"])
                raise sqlite3.OperationalError("disk I/O error")
            change(self, id_, **values)

        monkeypatch.setattr(JobStore, "change", refuse)
        return refused

    return refusing


@pytest.mark.parametrize(
    ("times", "states"),
    [
        (1, (DONE,)),
        # It cannot be said either that the job waits, or has failed: its row says that it runs.
        (2, (DONE, QUEUED)),
        (6, (DONE, QUEUED, FAILED)),
    ],
)
def test_a_job_whose_end_a_disk_refuses_is_tried_again(
    serve: Callable[..., Any],
    refusing: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    times: int,
    states: tuple[str, ...],
) -> None:
    refused = refusing(times, *states)
    spoken_job, spoken = jobs_module.speak_job, []
    monkeypatch.setattr(jobs_module, "speak_job", lambda *given: spoken.append(1) or spoken_job(*given))
    url = f"{serve().url}/v1/audio/jobs"
    id_ = httpx2.post(url, json=SAID, timeout=60).json()["id"]

    ended = until(lambda: (now := httpx2.get(f"{url}/{id_}").json())["state"] in (DONE, FAILED) and now, 60)

    assert len(refused) == times
    # Its speech is whole, so it is neither spoken again nor given up.
    assert (ended["state"], len(spoken)) == (DONE, 1), ended
    assert ended["audio_seconds"] > 0
    assert len(httpx2.get(f"{url}/{id_}/audio").content) == ended["bytes"]
    told = httpx2.get(url.replace("/v1/audio/jobs", "/metrics")).text
    assert 'voxcpm_jobs_total{outcome="done"} 1.0' in told
    assert 'voxcpm_jobs_total{outcome="failed"} 1.0' not in told


def test_a_job_whose_speech_a_disk_refuses_fails_after_three_tries(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "FIRST_PAUSE", 0.1)
    tries: list[Path] = []

    def full(path: Path) -> Any:
        tries.append(path)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(job_speaking, "whole_file", full)
    url = f"{serve().url}/v1/audio/jobs"
    id_ = httpx2.post(url, json=SAID, timeout=60).json()["id"]

    failed = until(lambda: (now := httpx2.get(f"{url}/{id_}").json())["state"] in (DONE, FAILED) and now, 60)

    assert (failed["state"], failed["error"]["code"], len(tries)) == (FAILED, "storage", 3)
    assert str(tmp_path) not in failed["error"]["message"]
    assert not list(tmp_path.rglob("*.segment"))


def test_a_job_whose_failure_a_disk_refuses_too_does_not_say_that_the_server_ended(
    serve: Callable[..., Any], refusing: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(job_speaking, "whole_file", full)
    refused = refusing(1, FAILED)
    url = f"{serve().url}/v1/audio/jobs"
    id_ = httpx2.post(url, json=SAID, timeout=60).json()["id"]

    failed = until(lambda: (now := httpx2.get(f"{url}/{id_}").json())["state"] in (DONE, FAILED) and now, 60)

    assert (failed["state"], refused) == (FAILED, [FAILED])
    assert failed["error"]["message"] == "it was begun 3 times without a finished segment, and is given up"


def test_a_job_whose_voice_a_disk_refuses_once_is_tried_again(
    serve: Callable[..., Any], tts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "FIRST_PAUSE", 0.1)
    id_, _ = stored(tmp_path / "jobs")
    recording = (np.sin(np.arange(16_000) / 20).astype(np.float32) / 3, 16_000)
    tts.create_voice(recording, "a", name="ada").save(tmp_path / "jobs" / id_ / job_speaking.VOICE_FILE)
    read, refused = voice.read_bounded, list[Path]()

    def refuse(path: Path, max_bytes: int) -> bytes:
        if not refused:
            refused.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read(path, max_bytes)

    monkeypatch.setattr(voice, "read_bounded", refuse)
    url = f"{serve().url}/v1/audio/jobs/{id_}"

    ended = until(lambda: (now := httpx2.get(url).json())["state"] in (DONE, FAILED) and now, 60)

    assert (ended["state"], ended["error"], len(refused)) == (DONE, None, 1)


def test_a_finished_segment_counts_though_the_server_ends_within_the_next_one(
    serve: Callable[..., Any], euler_steps: Any, tmp_path: Path
) -> None:
    id_, _ = stored(tmp_path / "jobs", text=LONG)
    store = JobStore(tmp_path / "jobs")
    store.change(id_, starts=2)
    store.close()
    euler_steps.seconds = 0.005
    running = serve()
    until(lambda: httpx2.get(f"{running.url}/v1/audio/jobs/{id_}").json()["segments_done"], 60)
    running.stop()

    store = JobStore(tmp_path / "jobs")
    job = store.get("", id_)
    store.close()
    assert job is not None
    assert (job.state, job.starts) == (QUEUED, 0)


def test_a_job_that_failed_is_failed_though_its_segments_cannot_be_listed(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_, _ = stored(tmp_path / "jobs")
    listed, tries = Path.glob, list[Path]()

    def refuse(self: Path, pattern: str) -> Any:
        if self.name == id_:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
        return listed(self, pattern)

    def too_long(store: JobStore, running: Any, *_: Any) -> int:
        tries.append(store.path(running.job.id))
        raise ApiError(400, "too long", code="speech_too_long")

    monkeypatch.setattr(Path, "glob", refuse)
    monkeypatch.setattr(jobs_module, "speak_job", too_long)
    url = f"{serve().url}/v1/audio/jobs/{id_}"

    until(lambda: httpx2.get(url).json()["state"] == FAILED or len(tries) > 1, 60)

    assert (httpx2.get(url).json()["state"], len(tries)) == (FAILED, 1)


def test_speech_that_cannot_be_read_is_a_507(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{serve().url}/v1/audio/jobs"
    id_ = httpx2.post(url, json=SAID, timeout=60).json()["id"]
    until(lambda: httpx2.get(f"{url}/{id_}").json()["state"] == DONE, 60)
    opened = Path.open

    def refuse(self: Path, *given: Any, **options: Any) -> Any:
        if self.name == "speech.wav":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return opened(self, *given, **options)

    monkeypatch.setattr(Path, "open", refuse)
    answer = httpx2.get(f"{url}/{id_}/audio")
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage")
    assert str(tmp_path) not in answer.text


def test_a_job_of_a_model_that_is_gone_waits_without_a_place_and_goes_on_when_it_is_back(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    id_, segment = stored(tmp_path / "jobs", "calm")
    running = serve(max_jobs=1)
    url = f"{running.url}/v1/audio/jobs"
    # It takes no place of others, and does not hold them up.
    other = httpx2.post(url, json=SAID, timeout=60)
    assert other.status_code == 202, other.text
    until(lambda: httpx2.get(f"{url}/{other.json()['id']}").json()["state"] == "done", 60)
    assert httpx2.post(url, json=SAID, timeout=60).status_code == 503

    waits = httpx2.get(f"{url}/{id_}").json()
    assert (waits["state"], waits["error"]["code"]) == ("waiting", "model_unavailable")
    assert waits["error"]["message"].startswith("waiting for model calm")
    assert [job["state"] for job in httpx2.get(url).json()["data"]] == ["done", "waiting"]
    assert httpx2.get(f"{url}/{id_}/audio").status_code == 409
    assert segment.is_file()
    running.stop()

    # Its name is back, as this server's default bundle has it.
    again = f"{serve(model_name='calm').url}/v1/audio/jobs/{id_}"
    done = until(lambda: (now := httpx2.get(again).json())["state"] == "done" and now, 60)
    assert done["error"] is None
    assert httpx2.get(f"{again}/audio").status_code == 200


def test_a_job_of_a_model_that_is_gone_can_be_deleted(serve: Callable[..., Any], tmp_path: Path) -> None:
    id_, segment = stored(tmp_path / "jobs", "calm")
    url = f"{serve().url}/v1/audio/jobs/{id_}"
    assert httpx2.delete(url).json()["deleted"] is True
    assert httpx2.get(url).status_code == 404
    assert not segment.parent.parent.exists()
