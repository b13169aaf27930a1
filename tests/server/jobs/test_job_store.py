"""The folder of jobs without a server: whose turn it is, what it leaves alone, hides, cleans up and refuses."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from voxcpm_constants.user_folders import jobs_folder
from voxcpm_runtime import InputError
from voxcpm_server.jobs.store import DONE, QUEUED, RUNNING, JobStore

SAID = {"model": "tts-1", "input": "one two three.", "response_format": "wav", "seed": 7, "voice": "default"}
MODELS = ("tts-1",)


def test_the_default_folder_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    assert jobs_folder() == tmp_path / "jobs"


def test_owners_take_turns(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs")
    ids = {owner: [store.add(store.new_folder(), owner, SAID, 7, 1).id for _ in range(3)] for owner in "ab"}

    order = []
    while (job := store.start_next(MODELS)) is not None:
        order.append(job.id)
        store.change(job.id, state=DONE, started=time.time())
        time.sleep(0.002)

    assert order == [ids["a"][0], ids["b"][0], ids["a"][1], ids["b"][1], ids["a"][2], ids["b"][2]]
    store.close()


@pytest.mark.parametrize("refused", range(3))
def test_a_job_that_a_disk_refuses_to_begin_has_not_been_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    store = JobStore(tmp_path / "jobs")
    store.add(store.new_folder(), "a", SAID, 7, 1)
    execute, made = store._execute, list[str]()

    def refuse(statement: str, *values: Any) -> list[Any]:
        made.append(statement)
        if len(made) == refused + 1:
            raise sqlite3.OperationalError("disk I/O error")
        return execute(statement, *values)

    monkeypatch.setattr(store, "_execute", refuse)
    try:
        job = store.start_next(MODELS)
    except sqlite3.OperationalError:
        job = store.start_next(MODELS)

    monkeypatch.undo()
    assert job is not None
    assert (job.state, job.starts, job.error) == (RUNNING, 1, None)
    assert job == store.get("a", job.id)
    store.close()


def test_what_a_killed_server_left_is_cleaned_up(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs")
    job = store.add(store.new_folder(), "a", SAID, 7, 1)
    assert store.start_next(MODELS) is not None
    without_row = store.new_folder()
    (without_row / "prompt_audio").write_bytes(b"a")
    (store.path(job.id) / "speech.wav.part").write_bytes(b"half")
    assert store.get("a", job.id).state == RUNNING  # type: ignore[union-attr]
    store.close()

    store = JobStore(tmp_path / "jobs")
    assert store.get("a", job.id).state == QUEUED  # type: ignore[union-attr]
    assert not without_row.exists()
    assert not list(store.path(job.id).iterdir())
    store.close()


def test_files_that_are_not_the_servers_stay(tmp_path: Path) -> None:
    foreign = tmp_path / "holiday" / "film.part"
    foreign.parent.mkdir()
    foreign.write_text("mine")
    (tmp_path / "letter.part").write_text("mine")
    (tmp_path / "job_of_mine").mkdir()
    JobStore(tmp_path).close()
    assert foreign.is_file()
    assert (tmp_path / "letter.part").is_file()
    assert (tmp_path / "job_of_mine").is_dir()


def test_only_the_servers_user_reads_jobs_in_a_folder_that_was_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    store = JobStore(tmp_path)
    job = store.add(store.new_folder(), "", SAID, 7, 1)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("jobs.sqlite*")}
    assert len(modes) == 3
    assert set(modes.values()) == {0o600}
    store.path(job.id).chmod(0o755)
    store.close()
    store = JobStore(tmp_path)
    assert store.path(job.id).stat().st_mode & 0o777 == 0o700
    store.close()


def test_a_folder_of_jobs_is_one_servers_alone(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs")
    with pytest.raises(match="another server uses this folder"):
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
    newer = tmp_path / "newer"
    newer.mkdir()
    with sqlite3.connect(newer / "jobs.sqlite") as rows:
        rows.execute("PRAGMA user_version = 99")
    rows.close()
    with pytest.raises(InputError, match="a newer release wrote it"):
        JobStore(newer)


def test_a_database_with_other_columns_is_refused_in_one_line(tmp_path: Path) -> None:
    JobStore(tmp_path).close()
    with sqlite3.connect(tmp_path / "jobs.sqlite") as rows:
        rows.execute("ALTER TABLE jobs DROP COLUMN starts")
    rows.close()

    with pytest.raises(InputError, match="another release wrote it") as caught:
        JobStore(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("column", ["id", "request"])
def test_a_row_that_a_disk_has_damaged_is_refused_in_one_line(tmp_path: Path, column: str) -> None:
    """A job without a name ended the start in a traceback."""
    store = JobStore(tmp_path)
    store.add(store.new_folder(), "", {"input": "Yes."}, 7, 1)
    store.close()
    schema = "UPDATE sqlite_schema SET sql = replace(sql, ?, ?)"
    declared, free = "id TEXT NOT NULL", "id TEXT          "
    for one, other, change in ((declared, free, ""), (free, declared, {"id": "NULL"}.get(column, "'{'"))):
        with sqlite3.connect(tmp_path / "jobs.sqlite") as rows:
            if change:
                rows.execute(f"UPDATE jobs SET {column} = {change}")  # noqa: S608 - both are above
            rows.execute("PRAGMA writable_schema = ON")
            rows.execute(schema, (one, other))
        rows.close()

    with pytest.raises(
        InputError, match=r"jobs cannot be read \((NULL value in jobs.id|a job's request is)"
    ) as caught:
        JobStore(tmp_path)
    assert "\n" not in str(caught.value)
