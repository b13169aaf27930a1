"""Damaged Core AI programs: one line and exit code 2, though Apple's compiler ends its process at most of them."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from voxcpm_constants.errors import BundleError
from voxcpm_constants.manifest import Manifest, record_folder
from voxcpm_constants.step_models import FEAT_ENCODER
from voxcpm_runtime.backends.core_ai.programs import compile_program, compiled_program
from voxcpm_runtime.commands import cli

pytest.importorskip("coreai", exc_type=ImportError)

PROGRAM = Path("fp32") / f"{FEAT_ENCODER}.aimodel"


@pytest.fixture
def damaged(tiny_bundle_27: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the bundle, in fp32 alone."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle_27, folder)
    return folder


@pytest.fixture
def refused(damaged: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """refused(): what `generate` says of the damaged bundle, after one line, exit code 2 and no file."""

    def run() -> str:
        words = ["generate", str(damaged), "--precision", "fp32", "--text", "hello.", "-o", "hello.wav"]
        code = cli.main(words)
        out, error = capfd.readouterr()
        assert (code, out, error.count("\n")) == (2, "", 1), error
        assert not list(folder.iterdir())
        return error

    return run


def remove(program: Path) -> None:
    (program / "main.mlirb").unlink()


def alter(program: Path) -> None:
    content = bytearray((program / "main.mlirb").read_bytes())
    content[20:400:7] = bytes(byte ^ 0x55 for byte in content[20:400:7])
    (program / "main.mlirb").write_bytes(content)


def newer_asset(program: Path) -> None:
    path = program / "metadata.json"
    path.write_text(path.read_text().replace('"2.0"', '"9.0"'))


@pytest.mark.usefixtures("own_compiled_27")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove, "main.mlirb: missing from the Core AI program"),
        (alter, "main.mlirb: content does not match main.hash"),
        (
            newer_asset,
            'Core AI cannot compile it (Asset version "9.0" is not supported); convert again, or update',
        ),
    ],
)
def test_a_program_that_the_manifest_does_not_find_damaged_is_one_line(damaged, refused, damage, message):
    damage(damaged / PROGRAM)
    files = {path: record for path, record in record_folder(damaged).items() if "/" in path}
    Manifest.read(damaged).model_copy(update={"files": files}).write(damaged)

    assert message in refused()
    assert not list(damaged.parent.glob("cache/compiled/.*.aimodelx"))


def test_what_ends_apples_compiler_is_one_line(damaged, tmp_path):
    alter(damaged / PROGRAM)
    content = (damaged / PROGRAM / "main.mlirb").read_bytes()
    (damaged / PROGRAM / "main.hash").write_bytes(hashlib.sha256(content).digest())

    with pytest.raises(BundleError, match=r"Core AI cannot compile it \(") as raised:
        compile_program(damaged / PROGRAM, tmp_path / "compiled")
    assert "\n" not in str(raised.value)


def test_a_full_disk_is_one_line(damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler writes by way of a mapped file, so a full disk is a SIGBUS: here of a child that sends it itself."""
    child = tmp_path / "child.sh"
    child.write_text("#!/bin/sh\nkill -BUS $$\n")
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))
    full = os.strerror(errno.ENOSPC)

    with (
        pytest.warns(UserWarning, match=full),
        pytest.raises(BundleError, match=rf"cannot write Core AI's compiled programs \({full}\)"),
    ):
        compiled_program(damaged / PROGRAM, "0" * 64)
    assert not list(tmp_path.rglob("*.aimodelx"))
