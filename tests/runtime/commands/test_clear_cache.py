"""The command `clear-cache` removes only this project's cache."""

import json

import pytest

from voxcpm_runtime.commands import cli

KEPT = (
    "voices/ada.voice",
    "compiled/mine.txt",
    "lowered/notes/a.lowered.txt",
    "bundles/mine/manifest.json",
    "compiled/0-24F74.lock",
    "bundles/pretrained-0.lock",
)
CACHED = (
    "compiled/0-24F74.mlmodelc/weights/weight.bin",
    "compiled/0-24F74.mlmodelc.main-ALL.loaded",
    "compiled/1.hung",
    "lowered/a.lowered",
    "verified/b.json",
    "measured/.c.json.0.part",
)
BUNDLES = ("bundles/pretrained-0/manifest.json", "bundles/.pretrained-1/manifest.json")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with a megabyte in each file."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    for name in (*KEPT, *CACHED, *BUNDLES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(10**6))
    return tmp_path


def files(cache):
    return {path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file()}


def test_clear_cache_removes_entries_and_prints_their_size(cache, capsys):
    link = cache / "compiled" / "1-24F74.mlmodelc"
    link.symlink_to(cache / "voices")
    assert cli.main(["clear-cache"]) == 0
    assert not link.is_symlink()
    assert files(cache) == {*KEPT, *BUNDLES}
    removed = {"compiled": 3, "lowered": 1, "verified": 1, "measured": 1}
    expected = [f"{cache}/{name}: {count}.0 MB removed" for name, count in removed.items()]
    assert capsys.readouterr().out.splitlines() == expected
    assert cli.main(["clear-cache", "--all", "--json"]) == 0
    removed = {f"{cache}/{name}": 0 for name in removed} | {f"{cache}/bundles": 2 * 10**6}
    assert json.loads(capsys.readouterr().out) == removed
    assert files(cache) == set(KEPT)
