"""The folder of jobs without a server: whose turn it is, what it leaves alone, hides, cleans up and refuses."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from voxcpm_runtime import InputError
from voxcpm_server.jobs.store import DONE, QUEUED, Job, JobStore

SAID = {"model": "tts-1", "input": "one two three.", "response_format": "wav", "seed": 7, "voice": "default"}
MODELS = ("tts-1",)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    opened = JobStore(tmp_path / "jobs")
    yield opened
    opened.close()


def added(store: JobStore, owner: str = "a") -> Job:
    return store.add(owner, SAID, 7, 1, {"prompt_audio": b"recording"}, None)


def test_owners_take_turns(store: JobStore) -> None:
    ids = {owner: [added(store, owner).id for _ in range(3)] for owner in "ab"}
    order = []
    while (job := store.start_next(MODELS)) is not None:
        order.append(job.id)
        store.change(job.id, state=DONE, started=time.time())
        time.sleep(0.002)

    assert order == [ids["a"][0], ids["b"][0], ids["a"][1], ids["b"][1], ids["a"][2], ids["b"][2]]


def test_an_interrupted_job_comes_first_unless_it_is_to_be_skipped(store: JobStore) -> None:
    waiting, interrupted = added(store), added(store, "b")
    store.change(interrupted.id, started=time.time())
    assert store.start_next(["other"]) is None
    for skip, expected in (([], interrupted), ([interrupted.id], waiting)):
        started = store.start_next(MODELS, skip)
        assert started is not None
        assert started.id == expected.id


def test_what_a_killed_server_left_is_cleaned_up_and_its_users_files_stay(tmp_path: Path) -> None:
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
    (left,) = store.of_owner("a")
    assert (left.id, left.state) == (job.id, QUEUED)
    assert not without_row.exists()
    assert [path.name for path in store.path(job.id).iterdir()] == ["prompt_audio"]
    assert all(path.read_text() == "mine" for path in mine)
    store.close()


def test_only_the_servers_user_reads_jobs_in_a_folder_that_was_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    store = JobStore(tmp_path)
    job = added(store)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("jobs.sqlite*")}
    assert len(modes) == 3
    assert set(modes.values()) == {0o600}
    assert store.path(job.id).stat().st_mode & 0o777 == 0o700
    store.close()


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs")
    with pytest.raises(InputError, match="another server uses this folder"):
        JobStore(tmp_path / "jobs")
    store.close()
    JobStore(tmp_path / "jobs").close()

    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "jobs.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(InputError, match="jobs cannot be read"):
        JobStore(tmp_path / "damaged")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="jobs cannot be stored there"):
        JobStore(tmp_path / "file")
    with sqlite3.connect(tmp_path / "jobs" / "jobs.sqlite") as rows:
        rows.execute("ALTER TABLE jobs DROP COLUMN starts")
    rows.close()
    with pytest.raises(InputError, match="another release wrote it") as caught:
        JobStore(tmp_path / "jobs")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", ["UPDATE jobs SET id = NULL", "UPDATE jobs SET request = '{'"])
def test_a_row_that_a_disk_has_damaged_is_refused_in_one_line(tmp_path: Path, change: str) -> None:
    """A job without a name ended the start in a traceback."""
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

    with pytest.raises(
        InputError, match=r"jobs cannot be read \((NULL value in jobs.id|a job's request is)"
    ) as caught:
        JobStore(tmp_path)
    assert "\n" not in str(caught.value)
