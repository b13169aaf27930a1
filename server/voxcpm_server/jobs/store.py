"""The jobs of a server on disk: a row in SQLite and a folder of files for each.

    jobs.sqlite     a job exists if and only if it has a row
    jobs.lock       held by the server that uses the folder
    ID/             recordings and voice as they were sent, finished segments, and at the end the speech

Files are written before the row, and deleted after it. So no job is ever without its files, even if the server is
killed; folders without a row are removed at the next start.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

import filelock

from voxcpm_constants.errors import os_reason
from voxcpm_runtime import InputError

QUEUED, RUNNING, DONE, FAILED = "queued", "running", "done", "failed"
_SCHEMA = 1
_PART = ".part"
# The folder may contain files of its user.
_OWN_FOLDER = re.compile(r"job_[0-9a-f]{24}")
MAX_STARTS = 3
"""Starts without a finished segment after which a job is given up: it may be what crashes the server."""


class FolderInUseError(InputError):
    """A folder of jobs that another server uses."""


@dataclass(frozen=True)
class Job:
    """A row: what was asked, and how far it is. Times are seconds since 1970."""

    id: str
    owner: str
    state: str
    created: float
    started: float | None
    ended: float | None
    request: str
    """The speech request as JSON, without recordings."""
    seed: int
    segments: int
    segments_done: int
    audio_seconds: float
    bytes: int
    """Size of the speech's file; 0 before it is done."""
    starts: int
    """How often it was begun since its last finished segment."""
    error: str | None
    """OpenAI's error as JSON: why it failed, or why it waits to be tried again; otherwise None."""

    @property
    def asked(self) -> dict[str, Any]:
        """The fields of the speech request."""
        return dict(json.loads(self.request))

    @property
    def audio_name(self) -> str:
        """The name of the speech's file."""
        return f"speech.{self.asked['response_format']}"


_COLUMNS = {
    "str": "TEXT NOT NULL", "float": "REAL NOT NULL", "int": "INTEGER NOT NULL",
    "str | None": "TEXT", "float | None": "REAL",
}  # fmt: skip


_OF_MODELS = "json_extract(request, '$.model') IN (SELECT value FROM json_each(?))"
"""A condition on a row, which takes the names of models as JSON."""


class JobStore:
    """The jobs of a folder. Any thread may use it; every method may raise sqlite3.Error and OSError.

    Raises FolderInUseError if another server uses the folder, and InputError if it cannot be used at all. Jobs that ran
    when the last server ended are queued again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        try:
            # Texts and recordings are private.
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # It may be closed by another thread.
            self._used = filelock.FileLock(folder / "jobs.lock", timeout=0, thread_local=False)
            self._used.acquire()
            # The folder may have existed, readable by everyone. SQLite gives its other files the mode of this one.
            for name in ("jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm"):
                _private(folder / name, made=name == "jobs.sqlite")
            self._rows = sqlite3.connect(
                folder / "jobs.sqlite", check_same_thread=False, isolation_level=None
            )
            self._prepare()
            self._clean_up()
        except filelock.Timeout:
            raise FolderInUseError(
                f"{folder}: another server uses this folder of jobs; give each its --jobs-folder"
            ) from None
        except OSError as error:
            raise InputError(f"{folder}: jobs cannot be stored there ({os_reason(error)})") from None
        except sqlite3.Error as error:
            self._used.release()
            raise InputError(
                f"{folder / 'jobs.sqlite'}: the jobs cannot be read ({error}); move it away, or give another "
                "--jobs-folder"
            ) from None

    def close(self) -> None:
        """Leave the folder to another server."""
        with self._lock:
            self._rows.close()
        self._used.release()

    def path(self, id_: str) -> Path:
        """The folder of a job's files."""
        return self.folder / id_

    def new_folder(self) -> Path:
        """A folder for a new job's files, named after the job. The job exists only after `add`."""
        folder = self.path(f"job_{secrets.token_hex(12)}")
        folder.mkdir(mode=0o700)
        return folder

    def add(self, folder: Path, owner: str, request: Mapping[str, Any], seed: int, segments: int) -> Job:
        """A new job, which waits."""
        job = Job(
            id=folder.name,
            owner=owner,
            state=QUEUED,
            created=time.time(),
            started=None,
            ended=None,
            request=json.dumps(request),
            seed=seed,
            segments=segments,
            segments_done=0,
            audio_seconds=0.0,
            bytes=0,
            starts=0,
            error=None,
        )
        names = [field.name for field in fields(Job)]
        marks = ", ".join("?" * len(names))
        self._execute(
            f"INSERT INTO jobs ({', '.join(names)}) VALUES ({marks})",  # noqa: S608 - names of the class
            *(getattr(job, name) for name in names),
        )
        return job

    def get(self, owner: str, id_: str) -> Job | None:
        """A job of that owner; None if there is no such job."""
        return self._one("SELECT * FROM jobs WHERE id = ? AND owner = ?", id_, owner)

    def of_owner(self, owner: str) -> list[Job]:
        """All jobs of an owner, the latest first."""
        rows = self._execute("SELECT * FROM jobs WHERE owner = ? ORDER BY created DESC, id", owner)
        return [Job(*row) for row in rows]

    def counts(self, owner: str, models: Collection[str]) -> tuple[int, int]:
        """Number of all jobs, and of that owner's, without those that wait for another model than these."""
        ((every, own),) = self._execute(
            f"SELECT COUNT(*), COALESCE(SUM(owner = ?), 0) FROM jobs WHERE state != ? OR {_OF_MODELS}",  # noqa: S608 - its own words
            owner,
            QUEUED,
            json.dumps(list(models)),
        )
        return every, own

    def next(self, models: Collection[str], but: Collection[str] = ()) -> Job | None:
        """Begin the next job of these models, and return it; None if none waits.

        but: names of jobs to skip. Interrupted jobs come first, then that of the owner whose latest job began the
        longest ago. Call it while no job is spoken: a row that says "running" is then one whose end was not stored.
        """
        with self._lock:
            job = self._one(
                f"SELECT * FROM jobs AS j WHERE state IN (?, ?) AND {_OF_MODELS} "  # noqa: S608 - its own words
                "AND id NOT IN (SELECT value FROM json_each(?)) "
                "ORDER BY started IS NULL, (SELECT MAX(started) FROM jobs AS k WHERE k.owner = j.owner), created, id "
                "LIMIT 1",
                QUEUED,
                RUNNING,
                json.dumps(list(models)),
                json.dumps(list(but)),
            )
            if job is None:
                return None
            # Not read again: if that failed, the job would count as begun without being spoken.
            begun = replace(
                job, state=RUNNING, started=job.started or time.time(), starts=job.starts + 1, error=None
            )
            self.change(job.id, state=RUNNING, started=begun.started, starts=begun.starts, error=None)
            return begun

    def change(self, id_: str, **values: Any) -> None:
        """Change fields of a job; one that was deleted stays deleted."""
        assignments = ", ".join(f"{name} = ?" for name in values)
        self._execute(f"UPDATE jobs SET {assignments} WHERE id = ?", *values.values(), id_)  # noqa: S608 - fields

    def forget(self, id_: str) -> None:
        """Delete a job's row. Its files must be removed once nobody writes them."""
        statement = "DELETE FROM jobs WHERE id = ?"
        try:
            self._execute(statement, id_)
        except sqlite3.OperationalError:
            # A full disk may need the job's files deleted first.
            shutil.rmtree(self.path(id_), ignore_errors=True)
            self._execute(statement, id_)

    def remove(self, id_: str) -> None:
        """Delete a job and its files."""
        self.forget(id_)
        shutil.rmtree(self.path(id_), ignore_errors=True)

    def ended_before(self, time_: float) -> list[str]:
        """The names of jobs that ended before that time."""
        return [id_ for (id_,) in self._execute("SELECT id FROM jobs WHERE ended < ?", time_)]

    def size(self) -> int:
        """Bytes of all files of all jobs."""
        total = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                # Deleted since it was listed.
                with contextlib.suppress(FileNotFoundError):
                    total += (Path(folder) / name).lstat().st_size
        return total

    def _prepare(self) -> None:
        self._rows.execute("PRAGMA journal_mode = WAL")
        self._rows.execute("PRAGMA synchronous = NORMAL")
        ((version,),) = self._rows.execute("PRAGMA user_version").fetchall()
        if version > _SCHEMA:
            raise sqlite3.DatabaseError("a newer release wrote it")
        columns = {name for _, name, *_ in self._rows.execute("PRAGMA table_info(jobs)").fetchall()}
        if columns and columns != {field.name for field in fields(Job)}:
            raise sqlite3.DatabaseError("another release wrote it")
        # SQLite itself would read damaged rows.
        ((said,), *_) = self._rows.execute("PRAGMA quick_check(1)").fetchall()
        if said != "ok":
            raise sqlite3.DatabaseError(said.splitlines()[-1])
        declared = ", ".join(f"{field.name} {_COLUMNS[str(field.type)]}" for field in fields(Job))
        self._rows.execute(f"CREATE TABLE IF NOT EXISTS jobs ({declared}, PRIMARY KEY (id))")
        if self._rows.execute("SELECT 1 FROM jobs WHERE NOT json_valid(request) LIMIT 1").fetchall():
            raise sqlite3.DatabaseError("a job's request is damaged")
        self._rows.execute(f"PRAGMA user_version = {_SCHEMA}")

    def _clean_up(self) -> None:
        """Recover from whatever ended the last server."""
        self._execute("UPDATE jobs SET state = ? WHERE state = ?", QUEUED, RUNNING)
        names = {id_ for (id_,) in self._execute("SELECT id FROM jobs")}
        for id_ in names:
            if not self.path(id_).is_dir():
                self.forget(id_)
        for folder in self.folder.iterdir():
            if folder.is_symlink() or not folder.is_dir() or not _OWN_FOLDER.fullmatch(folder.name):
                continue
            if folder.name not in names:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            folder.chmod(0o700)
            for part in folder.rglob(f"*{_PART}"):
                part.unlink(missing_ok=True)

    def _one(self, statement: str, *values: Any) -> Job | None:
        rows = self._execute(statement, *values)
        return Job(*rows[0]) if rows else None

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._rows.execute(statement, values).fetchall()


def _private(path: Path, *, made: bool) -> None:
    """Make a file readable by this user only. made: whether to create it if it is missing."""
    if made:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    with contextlib.suppress(FileNotFoundError):
        path.chmod(0o600)


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """Write a file atomically: it gets its name when it is complete and synced; an error removes it."""
    partial = path.with_name(path.name + _PART)
    try:
        with partial.open("wb+") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
