"""Jobs that wait for their bundle, that a disk refuses, or that are given up."""

from __future__ import annotations

import errno
import itertools
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from voxcpm_runtime import BundleError
from voxcpm_server.application import create_app
from voxcpm_server.errors import ApiError
from voxcpm_server.jobs import execution, speaking
from voxcpm_server.jobs.store import DONE, FAILED, QUEUED, JobStore
from voxcpm_server.rooms import AllSettings as Settings
from voxcpm_server.speech.served_bundles import Bundles
from waiting import until

Serve = Callable[..., Any]


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "FIRST_PAUSE", 0.2)


@pytest.fixture
def stored(jobs: Any, tmp_path: Path) -> Callable[..., tuple[str, Path]]:
    """stored(starts=0, **fields): a job that waits in the folder, and a finished segment of it."""

    def stored(starts: int = 0, voice: Any = None, **fields: Any) -> tuple[str, Path]:
        store = JobStore(tmp_path / "jobs")
        job = store.add("", {**jobs.said, **fields}, 7, 1, {}, voice)
        store.change(job.id, starts=starts)
        segment = store.path(job.id) / ".speech.wav.segments" / "0.segment"
        segment.parent.mkdir()
        segment.write_bytes(b"finished")
        store.close()
        return job.id, segment

    return stored


def full(path: Path) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_start_without_its_bundle_leaves_every_job_as_it_was(stored: Any, tmp_path: Path) -> None:
    id_, segment = stored()
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


def test_a_job_waits_for_its_bundle_and_others_are_spoken(
    serve: Serve, jobs: Any, stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_, segment = stored()
    lease, refusals, refuses = Bundles.lease, list[float](), [True]

    async def refuse(self: Any, name: str | None = None) -> Any:
        if name == "tts-1" and refuses:
            refusals.append(time.monotonic())
            raise ApiError(503, "damaged", code="model_unavailable")
        return await lease(self, name)

    monkeypatch.setattr(Bundles, "lease", refuse)
    client = jobs(serve().url)
    assert client.ended(client.submitted(model="tts-1-hd"))["state"] == "done"
    waits = client.job(id_)
    assert (waits["state"], waits["error"]["code"]) == ("waiting", "model_unavailable")
    assert segment.is_file()
    # Each pause is twice as long as the one before. However often, it is not given up.
    until(lambda: len(refusals) > 4)
    pauses = [later - earlier for earlier, later in itertools.pairwise(refusals)]
    assert all(pause >= 0.2 * 2**number for number, pause in enumerate(pauses[:4]))
    refuses.clear()
    done = client.ended(id_)
    assert (done["state"], done["error"]) == ("done", None)


def test_a_job_of_a_model_that_is_gone_waits_without_a_place_until_it_is_back(
    serve: Serve, jobs: Any, stored: Any
) -> None:
    (id_, segment), (deleted, other) = stored(model="calm"), stored(model="calm")
    running = serve(max_jobs=1)
    client = jobs(running.url)
    # It takes no place of others, and does not hold them up.
    assert client.ended(client.submitted())["state"] == "done"
    assert client.submit().status_code == 503
    waits = client.job(id_)
    assert (waits["state"], waits["error"]["code"]) == ("waiting", "model_unavailable")
    assert waits["error"]["message"].startswith("waiting for model calm")
    assert httpx2.get(f"{client.url}/{id_}/audio").status_code == 409
    assert segment.is_file()
    assert httpx2.delete(f"{client.url}/{deleted}").json()["deleted"] is True
    assert not other.parent.parent.exists()
    running.stop()

    # Its name is back, as this server's default bundle has it.
    assert jobs(serve(model_name="calm").url).ended(id_)["state"] == "done"


@pytest.mark.parametrize(
    ("times", "states"),
    [
        (1, (DONE,)),
        # It cannot be said either that the job waits, or has failed: its row says that it runs.
        (6, (DONE, QUEUED, FAILED)),
    ],
)
def test_a_job_whose_end_a_disk_refuses_is_tried_again(
    serve: Serve, jobs: Any, monkeypatch: pytest.MonkeyPatch, times: int, states: tuple[str, ...]
) -> None:
    monkeypatch.setattr(execution, "FIRST_PAUSE", 0.02)
    change, refused, speak_job, spoken = JobStore.change, [], execution.speak_job, []

    def refuse(self: JobStore, id_: str, **values: Any) -> None:
        if values.get("state") in states and len(refused) < times:
            refused.append(values["state"])
            raise sqlite3.OperationalError("disk I/O error")
        change(self, id_, **values)

    monkeypatch.setattr(JobStore, "change", refuse)
    monkeypatch.setattr(execution, "speak_job", lambda *given: spoken.append(1) or speak_job(*given))
    running = serve()
    client = jobs(running.url)
    ended = client.ended(id_ := client.submitted())

    # Its speech is whole, so it is neither spoken again nor given up.
    assert (ended["state"], len(spoken), len(refused)) == (DONE, 1, times)
    assert ended["audio_seconds"] > 0
    assert len(httpx2.get(f"{client.url}/{id_}/audio").content) == ended["bytes"]
    told = httpx2.get(f"{running.url}/metrics").text
    assert 'voxcpm_jobs_total{outcome="done"} 1.0' in told
    assert 'voxcpm_jobs_total{outcome="failed"} 1.0' not in told


def test_a_job_whose_speech_a_disk_refuses_fails_after_three_tries(
    serve: Serve, jobs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tries: list[Path] = []
    monkeypatch.setattr(speaking, "whole_file", lambda path: tries.append(path) or full(path))
    client = jobs(serve().url)
    failed = client.ended(client.submitted())

    assert (failed["state"], failed["error"]["code"], len(tries)) == (FAILED, "storage", 3)
    assert str(tmp_path) not in failed["error"]["message"]
    assert not list(tmp_path.rglob("*.segment"))


@pytest.mark.parametrize(("starts", "state"), [(2, DONE), (3, FAILED)])
def test_a_job_that_ends_the_server_again_and_again_is_given_up(
    serve: Serve, jobs: Any, stored: Any, starts: int, state: str
) -> None:
    id_, segment = stored(starts=starts)
    ended = jobs(serve().url).ended(id_)
    assert ended["state"] == state
    assert state == DONE or "begun 3 times" in ended["error"]["message"]
    assert not segment.exists()


def test_files_and_length_of_jobs_are_bounded(serve: Serve, jobs: Any) -> None:
    for settings, code, words in (
        ({"max_jobs_megabytes": 0.2}, "storage", "the most that they may"),
        ({"max_job_audio_seconds": 2}, "speech_too_long", "longer than 2 s"),
    ):
        running = serve(**settings)
        client = jobs(running.url)
        id_ = client.submitted(input=client.long)
        failed = client.ended(id_)
        assert (failed["state"], failed["error"]["code"]) == ("failed", code)
        assert words in failed["error"]["message"]
        # Its segments are gone, so that there is room again.
        assert client.submit(input="Hi.").status_code == 202
        running.stop()


def test_what_the_database_refuses_is_a_507(serve: Serve, jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = jobs(serve().url)

    def refuse(*_: Any) -> Any:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(JobStore, "get", refuse)
    monkeypatch.setattr(JobStore, "of_owner", refuse)
    for method, path in (("GET", ""), ("GET", "/job_a"), ("DELETE", "/job_a")):
        answer = httpx2.request(method, f"{client.url}{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage")


def test_a_folder_of_another_server_means_no_jobs_for_the_page(
    without_bundle: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "jobs_folder", lambda: tmp_path / "jobs")
    others = JobStore(tmp_path / "jobs")
    running = without_bundle(max_jobs=1, model_name="voxcpm")
    assert httpx2.get(f"{running.url}/v1/about").json()["jobs"] is False
    others.close()
