"""The server's jobs on disk: a row in SQLite and a folder of files for each.

    jobs.sqlite     a job exists if and only if it has a row
    jobs.lock       locked by the server that uses the folder
    ID/             recordings and voice of the request, finished segments, and finally the speech

Files are written before the row. Folders without a row, and rows without a folder, are removed at the next start.
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
from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

import filelock

from voxcpm_constants.errors import os_reason
from voxcpm_runtime import InputError, Voice
from voxcpm_server.errors import ApiError
from voxcpm_server.settings import MEGABYTE

QUEUED, RUNNING, DONE, FAILED = "queued", "running", "done", "failed"
MAX_STARTS = 3
"""Starts without a finished segment after which a job fails, as it may be what crashes the server."""
VOICE_FILE = "voice.voice"  # a job's voice in its folder
SUBTITLES_FILE = "speech.srt"  # its subtitles, once it is done
_JOB_FOLDER = re.compile(r"job_[0-9a-f]{24}")


@dataclass(frozen=True)
class Job:
    """A row: the request and its progress. Times are Unix timestamps."""

    id: str
    owner: str
    state: str
    created: float
    started: float | None
    ended: float | None
    request: str  # the speech request as JSON, without recordings
    seed: int
    segments: int
    segments_done: int = 0
    audio_seconds: float = 0.0
    bytes: int = 0  # size of the speech's file; 0 until it is done
    starts: int = 0  # starts since its last finished segment
    error: str | None = None  # OpenAI's error as JSON: why it failed, or why it waits to be retried
    missed: str | None = None  # JSON: words unsaid or repeated, characters replaced, warnings of recordings

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of the speech request."""
        return dict(json.loads(self.request))

    @property
    def audio_name(self) -> str:
        """File name of the speech."""
        return f"speech.{self.fields['response_format']}"


_SQL_TYPES = {
    "str": "TEXT NOT NULL", "float": "REAL NOT NULL", "int": "INTEGER NOT NULL",
    "str | None": "TEXT", "float | None": "REAL",
}  # fmt: skip
_COLUMNS = {field.name: _SQL_TYPES[str(field.type)] for field in fields(Job)}


class JobStore:
    """A folder of jobs. Thread-safe; every method may raise sqlite3.Error and OSError.

    Raises InputError if the folder cannot be used, for example because another server uses it. Jobs that were running
    when the last server stopped are queued again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        database = folder / "jobs.sqlite"
        try:
            # Texts and recordings are private. SQLite gives its other files the mode of this one.
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # `close` may run on another thread.
            self._used = filelock.FileLock(folder / "jobs.lock", timeout=0, thread_local=False)
            self._used.acquire()
            database.touch(mode=0o600)
            database.chmod(0o600)
            self._rows = sqlite3.connect(database, check_same_thread=False, isolation_level=None)
            self._prepare()
            self._clean_up()
        except filelock.Timeout:
            advice = "give each server its own --jobs-folder"
            raise InputError(f"{folder}: another server uses this folder; {advice}") from None
        except OSError as error:
            raise InputError(f"{folder}: cannot store jobs there ({os_reason(error)})") from None
        except sqlite3.Error as error:
            self._used.release()
            advice = "move it away, or choose another --jobs-folder"
            raise InputError(f"{database}: cannot read the jobs ({error}); {advice}") from None

    def close(self) -> None:
        """Close the database and release the folder's lock."""
        with self._lock:
            self._rows.close()
        self._used.release()

    def path(self, id_: str) -> Path:
        """The folder of a job's files."""
        return self.folder / id_

    def add(
        self, owner: str, request: Mapping[str, Any], seed: int, segments: int, files: Mapping[str, bytes],
        voice: Voice | None, missed: str | None = None,
    ) -> Job:  # fmt: skip
        """Queue a new job. files: its recordings, by name. voice: copied, as the stored one may change.

        missed: that of the job.
        """
        folder = self.path(f"job_{secrets.token_hex(12)}")
        row = (folder.name, owner, QUEUED, time.time(), None, None, json.dumps(request), seed, segments)
        job = Job(*row, missed=missed)
        try:
            folder.mkdir(mode=0o700)
            for name, content in files.items():
                (folder / name).write_bytes(content)
            if voice is not None:
                voice.save(folder / VOICE_FILE)
            values = astuple(job)
            self._execute(f"INSERT INTO jobs VALUES ({', '.join('?' * len(values))})", *values)  # noqa: S608
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return job

    def get(self, owner: str, id_: str) -> Job:
        """An owner's job. Raises ApiError (404) for an unknown one."""
        rows = self._execute("SELECT * FROM jobs WHERE id = ? AND owner = ?", id_, owner)
        if not rows:
            raise ApiError(404, f"unknown job {id_!r}; GET /v1/audio/jobs lists all", param="id")
        return Job(*rows[0])

    def for_owner(self, owner: str) -> list[Job]:
        """An owner's jobs, latest first."""
        rows = self._execute("SELECT * FROM jobs WHERE owner = ? ORDER BY created DESC, id", owner)
        return [Job(*row) for row in rows]

    def counts(self, owner: str) -> tuple[int, int]:
        """Number of jobs, in total and of that owner."""
        ((total, own),) = self._execute("SELECT COUNT(*), COALESCE(SUM(owner = ?), 0) FROM jobs", owner)
        return total, own

    def start_next(self, models: Collection[str], skip: Collection[str] = ()) -> Job | None:
        """Start the next job for these models: interrupted ones first, then the owner who waited longest."""
        rows = self._execute(
            "SELECT * FROM jobs AS j WHERE state = ? "
            "AND json_extract(request, '$.model') IN (SELECT value FROM json_each(?)) "
            "AND id NOT IN (SELECT value FROM json_each(?)) "
            "ORDER BY started IS NULL, (SELECT MAX(started) FROM jobs AS k WHERE k.owner = j.owner), created, id "
            "LIMIT 1",
            QUEUED, json.dumps(list(models)), json.dumps(list(skip)),
        )  # fmt: skip
        if not rows:
            return None
        job = Job(*rows[0])
        # Not re-read: if that failed, the job would be marked as running without being spoken.
        changes: dict[str, Any] = {
            "state": RUNNING, "started": job.started or time.time(), "starts": job.starts + 1, "error": None
        }  # fmt: skip
        self.change(job.id, **changes)
        return replace(job, **changes)

    def change(self, id_: str, **values: Any) -> None:
        """Update columns of a job; a no-op for a deleted one."""
        assignments = ", ".join(f"{name} = ?" for name in values)
        self._execute(f"UPDATE jobs SET {assignments} WHERE id = ?", *values.values(), id_)  # noqa: S608

    def end(self, id_: str, **values: Any) -> None:
        """Store the outcome of a run. If the job ended, delete its segments first: the disk may be full."""
        if values["state"] in (DONE, FAILED):
            # Segments that cannot be deleted stay until the job is deleted.
            with contextlib.suppress(OSError):
                for folder in self.path(id_).glob(".*.segments"):
                    shutil.rmtree(folder, ignore_errors=True)
        self.change(id_, **values)

    def remove(self, id_: str) -> None:
        """Delete a job. Its files go first: the disk may be full."""
        shutil.rmtree(self.path(id_), ignore_errors=True)
        self._execute("DELETE FROM jobs WHERE id = ?", id_)

    def ended_before(self, time_: float) -> list[str]:
        """Ids of jobs that ended before a time."""
        return [id_ for (id_,) in self._execute("SELECT id FROM jobs WHERE ended < ?", time_)]

    def check_size(self, max_megabytes: float) -> None:
        """Raises ApiError (507) if all jobs' files together have reached a size."""
        total = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                # It may have been deleted since it was listed.
                with contextlib.suppress(FileNotFoundError):
                    total += (Path(folder) / name).lstat().st_size
        if total >= max_megabytes * MEGABYTE:
            raise ApiError(507, f"the jobs' files have reached {max_megabytes:g} MB; delete a job")

    def _prepare(self) -> None:
        self._execute("PRAGMA journal_mode = WAL")
        self._execute("PRAGMA synchronous = NORMAL")
        columns = {name for _, name, *_ in self._execute("PRAGMA table_info(jobs)")}
        if columns and columns != _COLUMNS.keys():
            raise sqlite3.DatabaseError("written by another release")
        # SQLite itself would return damaged rows.
        if (found := self._execute("PRAGMA quick_check(1)")[0][0]) != "ok":
            raise sqlite3.DatabaseError(found.splitlines()[-1])
        declared = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
        self._execute(f"CREATE TABLE IF NOT EXISTS jobs ({declared}, PRIMARY KEY (id))")
        if self._execute("SELECT 1 FROM jobs WHERE NOT json_valid(request) LIMIT 1"):
            raise sqlite3.DatabaseError("a job's request is damaged")

    def _clean_up(self) -> None:
        self._execute("UPDATE jobs SET state = ? WHERE state = ?", QUEUED, RUNNING)
        ids = {id_ for (id_,) in self._execute("SELECT id FROM jobs")}
        for id_ in ids:
            if not self.path(id_).is_dir():
                self.remove(id_)
        for folder in self.folder.iterdir():
            # The user may have other files there.
            if folder.is_symlink() or not folder.is_dir() or not _JOB_FOLDER.fullmatch(folder.name):
                continue
            if folder.name not in ids:
                shutil.rmtree(folder, ignore_errors=True)
            for part in folder.rglob("*.part"):
                part.unlink(missing_ok=True)

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._rows.execute(statement, values).fetchall()
