"""Bundles and the cache of the doctor's tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edited_manifest import edit_manifest
from voxcpm_runtime.bundle.opening import Bundle, open_bundle


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def bundle(tiny_bundle: Path) -> Bundle:
    return open_bundle(tiny_bundle, "fp16")


@pytest.fixture
def edited(tiny_bundle: Path, tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], object]], Path]:
    """edited(change): a copy of the tiny bundle after change(files of the manifest)."""

    def edit(change: Callable[[dict[str, Any]], object]) -> Path:
        folder = tmp_path / "bundle"
        shutil.copytree(tiny_bundle, folder)
        edit_manifest(folder, lambda document: change(document["files"]))
        return folder

    return edit
