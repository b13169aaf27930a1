"""Conversions are kept from run to run, and made again when anything that decides them has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kept_conversions
from kept_conversions import KeptConversions


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("conversion/package/module.py", "constants/package/module.py", "tests/shared_bundles.py"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text("x = 1")
    return tmp_path / "tree"


@pytest.fixture
def conversions(tree: Path, tmp_path: Path) -> Conversions:
    return Conversions(tree, tmp_path)


class Conversions:
    """A tree whose conversions write a file each, and count."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.tree, self.folder, self.made = tree, folder, 0

    def copy(self, name: str = "bundle", arguments: object = (), **options: Any) -> Path:
        def make(folder: Path) -> None:
            self.made += 1
            folder.mkdir(parents=True)
            (folder / "file").write_bytes(bytes(5))

        to = self.folder / f"copy-{len(list(self.folder.iterdir()))}"
        KeptConversions(self.folder / "kept", self.tree, **options).copy(name, arguments, make, to)
        return to


def test_a_later_run_gets_a_copy_of_its_own(conversions: Conversions) -> None:
    (conversions.copy() / "file").write_text("changed by a test")
    assert (conversions.copy() / "file").read_bytes() == bytes(5)
    assert conversions.made == 1


def test_other_arguments_sources_and_tools_make_another(
    conversions: Conversions, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversions.copy(arguments=["fp16"])
    conversions.copy(arguments=["int8"])
    assert conversions.made == 2
    (tree / "constants/package/new.py").write_text("x = 2")
    for _ in range(2):
        conversions.copy(arguments=["fp16"])
    assert conversions.made == 3
    monkeypatch.setattr(kept_conversions, "versions", lambda: {"torch": "2.14.0"})
    conversions.copy(arguments=["fp16"])
    assert conversions.made == 4


def test_the_oldest_of_a_name_is_removed(conversions: Conversions) -> None:
    for arguments in ("first", "second", "third"):
        conversions.copy(arguments=arguments, newest=2)
    conversions.copy(arguments="second", newest=2)
    assert conversions.made == 3
    conversions.copy(arguments="first", newest=2)
    assert conversions.made == 4
