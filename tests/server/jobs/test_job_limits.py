"""How many jobs, and how large: bounds, and what the disk refuses."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from server_on_loopback import ServerOnLoopback
from voxcpm_server.errors import ApiError
from voxcpm_server.jobs import execution as jobs
from voxcpm_server.jobs import speaking as job_speaking
from voxcpm_server.jobs.store import JobStore
from voxcpm_server.settings import Settings

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


def test_too_many_jobs_are_told_when_to_come_again(without_bundle: Serving) -> None:
    its = without_bundle().service.rooms["jobs"]
    for counts, status in (((100, 0), 503), ((1, 100), 429)):
        its._max_per_key, its._settings = 1, Settings()
        with pytest.raises(ApiError) as caught:
            its._check_room(SimpleNamespace(counts=lambda *_, counts=counts: counts), "a", ())  # type: ignore[arg-type]
        assert caught.value.status_code == status
        assert int((caught.value.headers or {})["Retry-After"]) >= 1


def test_a_job_does_not_walk_through_all_files_for_each_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks, most = [100.0], [0], Settings().max_jobs_megabytes * 1e6
    sizes = iter([0, most - 1, most])
    monkeypatch.setattr("voxcpm_server.jobs.speaking.time.monotonic", lambda: now[0])

    def size() -> float:
        looks[0] += 1
        return next(sizes)

    bound = job_speaking._SizeBound(SimpleNamespace(size=size), Settings())  # type: ignore[arg-type]
    for _ in range(2):
        for _ in range(10):
            bound.check()
        now[0] += 10
    assert looks == [2]
    with pytest.raises(ApiError) as full:
        bound.check()
    assert full.value.status_code == 507


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
