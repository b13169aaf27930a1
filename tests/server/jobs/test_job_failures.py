"""Jobs that wait for their bundle, meet disk errors, or fail after too many attempts."""

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

from voxcpm_runtime import BundleError, InputError
from voxcpm_server.application import create_app
from voxcpm_server.errors import ApiError
from voxcpm_server.jobs import execution
from voxcpm_server.jobs.store import DONE, FAILED, QUEUED, JobStore
from voxcpm_server.rooms import AllSettings as Settings
from voxcpm_server.speech.served_bundles import Bundles
from waiting import until

Serve = Callable[..., Any]
SAID = {"model": "tts-1", "input": "one two three.", "response_format": "wav", "seed": 7, "voice": "default"}
MODELS = ("tts-1",)


@pytest.fixture(autouse=True)
def short_pause(monkeypatch):
    monkeypatch.setattr(execution, "JOB_RETRY_SECONDS", 0.2)


@pytest.fixture
def stored(jobs, tmp_path):
    """stored(starts=0, **fields): a queued job in the folder with one finished segment."""

    def stored(starts=0, voice=None, **fields):
        store = JobStore(tmp_path / "jobs")
        job = store.add("", {**jobs.said, **fields}, 7, 1, {}, voice)
        store.change(job.id, starts=starts)
        segment = store.path(job.id) / ".speech.wav.segments" / "0.segment"
        segment.parent.mkdir()
        segment.write_bytes(b"finished")
        store.close()
        return job.id, segment

    return stored


def full(path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_failed_start_leaves_jobs_unchanged(stored, tmp_path):
    id_, segment = stored()
    begun = []

    def missing():
        raise BundleError("/nothere: there is no bundle")

    settings = Settings(jobs_folder=tmp_path / "jobs", voices_folder=tmp_path / "voices")
    app = create_app(missing, settings, on_loaded=begun.append)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        until(lambda: begun)
        # Long enough for a worker to take the job.
        for _ in range(20):
            assert client.get(f"/v1/audio/jobs/{id_}").json()["state"] == QUEUED
            time.sleep(0.05)
    assert isinstance(begun[0], BundleError)
    assert segment.is_file()


@pytest.mark.long
def test_job_waiting_for_its_bundle_does_not_block_others(serve, jobs, stored, monkeypatch):
    id_, segment = stored()
    lease, refusals, refuses = Bundles.lease, list[float](), [True]

    async def refuse(self, name=None):
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
    # Waiting does not count as an attempt.
    until(lambda: len(refusals) > 4)
    assert all(later - earlier >= 0.2 for earlier, later in itertools.pairwise(refusals))
    refuses.clear()
    done = client.ended(id_)
    assert (done["state"], done["error"]) == ("done", None)


@pytest.mark.long
def test_job_waits_until_its_model_is_served_again(serve, jobs, stored):
    (id_, segment), (deleted, other) = stored(model="calm"), stored(model="calm")
    running = serve()
    client = jobs(running.url)
    # It does not block others.
    assert client.ended(client.submitted())["state"] == "done"
    waits = client.job(id_)
    assert (waits["state"], waits["error"]["code"]) == ("waiting", "model_unavailable")
    assert waits["error"]["message"].startswith("waiting for model calm")
    assert client.get(f"/{id_}/audio").status_code == 409
    assert segment.is_file()
    assert httpx2.delete(f"{client.url}/{deleted}").json()["deleted"] is True
    assert not other.parent.parent.exists()
    running.stop()
    # The default bundle has its name again.
    assert jobs(serve(model_name="calm").url).ended(id_)["state"] == "done"


def test_job_is_retried_if_its_final_write_fails(serve, jobs, monkeypatch):
    monkeypatch.setattr(execution, "JOB_RETRY_SECONDS", 0.02)
    change, refused, speak_job, spoken = JobStore.change, [], execution.speak_job, []

    def refuse(self, id_, **values):
        if values.get("state") == DONE and len(refused) < 6:
            refused.append(values["state"])
            raise sqlite3.OperationalError("disk I/O error")
        change(self, id_, **values)

    monkeypatch.setattr(JobStore, "change", refuse)
    monkeypatch.setattr(execution, "speak_job", lambda *given: spoken.append(1) or speak_job(*given))
    running = serve()
    client = jobs(running.url)
    ended = client.ended(id_ := client.submitted())
    # Its speech is complete, so it is neither regenerated nor failed.
    assert (ended["state"], len(spoken), len(refused)) == (DONE, 1, 6)
    assert ended["audio_seconds"] > 0
    assert len(client.get(f"/{id_}/audio").content) == ended["bytes"]
    told = running.metrics()
    assert 'voxcpm_jobs_total{outcome="done"} 1.0' in told
    assert 'voxcpm_jobs_total{outcome="failed"} 1.0' not in told


@pytest.mark.long
def test_job_fails_after_three_failed_writes(serve, jobs, monkeypatch, tmp_path):
    tries = []
    monkeypatch.setattr(execution, "atomic_file", lambda path: tries.append(path) or full(path))
    client = jobs(serve().url)
    failed = client.ended(client.submitted())
    assert (failed["state"], failed["error"]["code"], len(tries)) == (FAILED, "storage", 3)
    assert str(tmp_path) not in failed["error"]["message"]
    assert not list(tmp_path.rglob("*.segment"))


def test_finished_segment_resets_the_number_of_starts(serve, jobs, stored, monkeypatch):
    write, tries = execution.atomic_file, list[Path]()

    def fail_once(path):
        tries.append(path)
        return full(path) if len(tries) == 1 else write(path)

    monkeypatch.setattr(execution, "atomic_file", fail_once)
    # Without the segment that its third start finishes, it could not start again.
    id_, _ = stored(starts=2, input=jobs.long)
    assert jobs(serve().url).ended(id_)["state"] == DONE
    assert len(tries) > 1


@pytest.mark.parametrize(("starts", "state"), [(2, DONE), (3, FAILED)])
def test_job_that_crashes_the_server_repeatedly_fails(serve, jobs, stored, starts, state):
    id_, segment = stored(starts=starts)
    ended = jobs(serve().url).ended(id_)
    assert ended["state"] == state
    assert state == DONE or "started 3 times" in ended["error"]["message"]
    assert not segment.exists()


@pytest.mark.long
def test_job_files_and_text_length_are_limited(serve, jobs):
    for settings, code, words in (
        ({"max_jobs_megabytes": 0.2}, "storage", "have reached"),
        ({"max_job_audio_seconds": 2}, "speech_too_long", "limit of 2 s"),
    ):
        running = serve(**settings)
        client = jobs(running.url)
        id_ = client.submitted(input=client.long)
        failed = client.ended(id_)
        assert (failed["state"], failed["error"]["code"]) == ("failed", code)
        assert words in failed["error"]["message"]
        # Its segments are deleted to free space.
        assert client.submit(input="Hi.").status_code == 202
        running.stop()


def test_database_write_errors_are_507(serve, jobs, monkeypatch):
    client = jobs(serve().url)

    def refuse(*_):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(JobStore, "get", refuse)
    monkeypatch.setattr(JobStore, "for_owner", refuse)
    for method, path in (("GET", ""), ("GET", "/job_a"), ("DELETE", "/job_a")):
        answer = httpx2.request(method, f"{client.url}{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage")


def test_page_works_without_jobs_if_the_folder_is_locked(without_bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "jobs_folder", lambda: tmp_path / "jobs")
    others = JobStore(tmp_path / "jobs")
    running = without_bundle(max_jobs=1, model_name="voxcpm")
    assert running.get("/v1/about").json()["jobs"] is False
    others.close()


@pytest.fixture
def store(tmp_path):
    opened = JobStore(tmp_path / "jobs")
    yield opened
    opened.close()


def added(store, owner="a"):
    return store.add(owner, SAID, 7, 1, {"prompt_audio": b"recording"}, None)


def test_interrupted_job_runs_first_and_owners_take_turns(store):
    ids = {owner: [added(store, owner).id for _ in range(3)] for owner in "ab"}
    interrupted = ids["b"][0]
    store.change(interrupted, started=time.time())
    assert store.start_next(["other"]) is None
    other = store.start_next(MODELS, skip=[interrupted])
    assert other is not None
    assert other.id == ids["a"][0]
    store.change(other.id, state=QUEUED, started=None)
    order = []
    while (job := store.start_next(MODELS)) is not None:
        order.append(job.id)
        store.change(job.id, state=DONE, started=time.time())
        time.sleep(0.002)
    assert order == [ids["b"][0], ids["a"][0], ids["b"][1], ids["a"][1], ids["b"][2], ids["a"][2]]


def test_leftovers_of_a_killed_server_are_removed_and_user_files_stay(tmp_path):
    mine = [tmp_path / "holiday" / "film.part", tmp_path / "letter.part", tmp_path / "job_of_mine" / "a"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    store = JobStore(tmp_path)
    job, lost = added(store), added(store)
    assert store.start_next(MODELS) is not None
    without_row = tmp_path / f"job_{'0' * 24}"
    without_row.mkdir()
    (without_row / "prompt_audio").write_bytes(b"a")
    (store.path(job.id) / "speech.wav.part").write_bytes(b"half")
    (store.path(lost.id) / "prompt_audio").unlink()
    store.path(lost.id).rmdir()
    store.close()
    store = JobStore(tmp_path)
    (left,) = store.for_owner("a")
    assert (left.id, left.state) == (job.id, QUEUED)
    assert not without_row.exists()
    assert [path.name for path in store.path(job.id).iterdir()] == ["prompt_audio"]
    assert all(path.read_text() == "mine" for path in mine)
    store.close()


def test_world_readable_jobs_folder_becomes_private(tmp_path):
    tmp_path.chmod(0o755)
    store = JobStore(tmp_path)
    job = added(store)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("jobs.sqlite*")}
    assert len(modes) == 3
    assert set(modes.values()) == {0o600}
    assert store.path(job.id).stat().st_mode & 0o777 == 0o700
    store.close()


def test_unusable_folder_is_a_one_line_error(tmp_path):
    store = JobStore(tmp_path / "jobs")
    with pytest.raises(InputError, match="give each server its own --jobs-folder"):
        JobStore(tmp_path / "jobs")
    store.close()
    JobStore(tmp_path / "jobs").close()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "jobs.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(InputError, match="cannot read the jobs"):
        JobStore(tmp_path / "damaged")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot store jobs there"):
        JobStore(tmp_path / "file")
    with sqlite3.connect(tmp_path / "jobs" / "jobs.sqlite") as rows:
        rows.execute("ALTER TABLE jobs DROP COLUMN starts")
    rows.close()
    with pytest.raises(InputError, match="written by another release"):
        JobStore(tmp_path / "jobs")


@pytest.mark.parametrize("change", ["UPDATE jobs SET id = NULL", "UPDATE jobs SET request = '{'"])
def test_corrupt_row_is_a_one_line_error(tmp_path, change):
    """A job without a name used to abort the start with a traceback."""
    store = JobStore(tmp_path)
    added(store)
    store.close()
    declared, free = "id TEXT NOT NULL", "id TEXT          "
    for one, other, statement in ((declared, free, ""), (free, declared, change)):
        with sqlite3.connect(tmp_path / "jobs.sqlite") as rows:
            rows.execute(statement)
            rows.execute("PRAGMA writable_schema = ON")
            rows.execute("UPDATE sqlite_schema SET sql = replace(sql, ?, ?)", (one, other))
        rows.close()
    with pytest.raises(InputError, match=r"NULL value in jobs\.id|a job's request is"):
        JobStore(tmp_path)
