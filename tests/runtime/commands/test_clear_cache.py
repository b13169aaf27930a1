"""The command `clear-cache`: it removes what this project cached, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from voxcpm_runtime.commands import cli

KEPT = (
    "voices/ada.voice",
    "compiled/mine.txt",
    "lowered/notes/a.lowered.txt",
    "bundles/mine/manifest.json",
    "compiled/0-24F74.lock",
    "bundles/default-0.lock",
)
CACHED = (
    "compiled/0-24F74.mlmodelc/weights/weight.bin",
    "lowered/a.lowered",
    "verified/b.json",
    "measured/c.json",
)
BUILT_IN = ("bundles/default-0/manifest.json",)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a megabyte in each file."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    for name in (*KEPT, *CACHED, *BUILT_IN):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(10**6))
    return tmp_path


def files(cache: Path) -> set[str]:
    return {path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file()}


def test_it_removes_what_was_cached_and_says_how_much(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["clear-cache"]) == 0

    assert files(cache) == {*KEPT, *BUILT_IN}
    assert capsys.readouterr().out.splitlines() == [
        f"{cache}/compiled: 1.0 MB removed",
        f"{cache}/lowered: 1.0 MB removed",
        f"{cache}/verified: 1.0 MB removed",
        f"{cache}/measured: 1.0 MB removed",
    ]


def test_all_removes_the_built_in_voices_bundle_too(cache: Path) -> None:
    assert cli.main(["clear-cache", "--all"]) == 0

    assert files(cache) == set(KEPT)


def test_what_cannot_be_removed_is_named_and_the_rest_goes(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)

    assert cli.main(["clear-cache"]) == 2

    error = capsys.readouterr().err
    assert f"cannot remove {cache}/compiled/0-24F74.mlmodelc (Permission denied); change" in error
    assert not (cache / "lowered" / "a.lowered").exists()
