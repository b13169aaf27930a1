"""How many jobs, and how large: bounds, and what the disk refuses."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from server_on_loopback import ServerOnLoopback
from voxcpm_server.jobs import execution as jobs
from voxcpm_server.jobs.store import JobStore

Serving = Callable[..., ServerOnLoopback]


def test_a_file_that_is_deleted_while_sizes_are_added_up_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JobStore(tmp_path / "jobs")
    (tmp_path / "jobs" / "going").write_bytes(b"a")
    size, lstat = store.size(), Path.lstat

    def gone(path: Path) -> os.stat_result:
        if path.name == "going":
            raise FileNotFoundError(path)
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", gone)
    assert store.size() == size - 1
    store.close()


def test_a_folder_of_another_server_means_no_jobs_for_the_page(
    without_bundle: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "jobs_folder", lambda: tmp_path / "jobs")
    others = JobStore(tmp_path / "jobs")
    running = without_bundle(max_jobs=1, model_name="voxcpm")
    assert httpx2.get(f"{running.url}/v1/about").json()["jobs"] is False
    others.close()


def test_what_the_database_refuses_is_a_507(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = serve()

    def refuse(*_: Any) -> Any:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(JobStore, "get", refuse)
    monkeypatch.setattr(JobStore, "of_owner", refuse)
    for method, path in (("GET", ""), ("GET", "/job_a"), ("DELETE", "/job_a")):
        answer = httpx2.request(method, f"{running.url}/v1/audio/jobs{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage")
