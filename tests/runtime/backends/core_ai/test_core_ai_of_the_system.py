"""The system's Core AI runtime loads a program itself, which is checked first; nothing is compiled here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from voxcpm_constants.errors import BundleError
from voxcpm_runtime.backends.core_ai import step_model as core_ai


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "feat_encoder.aimodel"
    folder.mkdir()
    (folder / "main.mlirb").write_bytes(b"code")
    (folder / "main.hash").write_bytes(hashlib.sha256(b"code").digest())
    return folder


@pytest.fixture
def loaded(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[], tuple[list[Any], Any]]:
    """loaded(): the paths that the system's runtime was asked for, and the model."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))
    asked: list[tuple[Path, Any]] = []

    async def load(path: Path, options: Any) -> Any:
        asked.append((path, options))
        return SimpleNamespace(function_names=["main"])

    # Any other way to make options is an AttributeError.
    options = SimpleNamespace(
        is_supported=lambda: True, from_preferred_compute_unit_kind=lambda unit: f"prefer {unit}"
    )
    runtime = SimpleNamespace(
        AIModel=SimpleNamespace(load=load),
        SpecializationOptions=options,
        ComputeUnitKind=SimpleNamespace(gpu=lambda: "gpu"),
    )
    monkeypatch.setattr(core_ai, "_runtime", lambda: runtime)
    function: Any = SimpleNamespace(package=program, name="main")
    return lambda: (asked, core_ai._load_program([function], "0" * 64))


def test_the_systems_runtime_loads_the_program_itself_for_the_gpu(
    loaded: Callable[[], tuple[list[Any], Any]], program: Path, tmp_path: Path
) -> None:
    asked, model = loaded()

    assert asked == [(program, "prefer gpu")]
    assert model.function_names == ["main"]
    assert not (tmp_path / "cache").exists()


def test_a_damaged_program_does_not_reach_the_systems_runtime(
    loaded: Callable[[], tuple[list[Any], Any]], program: Path
) -> None:
    (program / "main.mlirb").write_bytes(b"cold")

    with pytest.raises(BundleError, match=r"content differs from main\.hash"):
        loaded()
