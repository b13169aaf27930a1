"""The documents say what is true of the server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from documents import BY_NAME, REPOSITORY, run_python
from server_on_loopback import ServerOnLoopback


def test_the_manuals_python_runs(
    server: ServerOnLoopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "anything")
    names = run_python(BY_NAME["server.md"])
    names["client"].close()
    assert (tmp_path / "hello.wav").stat().st_size > 1000


def test_the_table_of_the_server_has_every_module() -> None:
    text = BY_NAME["architecture.md"].read_text(encoding="utf-8")
    told = re.findall(r"`([a-z_]+\.py)`", text.partition("## The server")[2].partition("## ")[0])
    modules = (REPOSITORY / "server" / "voxcpm_server").glob("[!_]*.py")

    assert sorted(told) == sorted(path.name for path in modules)
