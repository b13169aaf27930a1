"""Errors of Apple's compiler are one line, although most of them abort its process."""

import errno
import os
import shutil
import sys
from pathlib import Path

import pytest

from voxcpm_constants.errors import BundleError
from voxcpm_constants.step_models import FEAT_ENCODER
from voxcpm_runtime.backends.core_ai.step_model import compile_program, compiled_program

pytest.importorskip("coreai", exc_type=ImportError)

PROGRAM = Path("fp32") / f"{FEAT_ENCODER}.aimodel"


@pytest.fixture
def damaged(tiny_bundle_27, tmp_path):
    """A copy of the bundle."""
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle_27, folder)
    return folder


def newer(program):
    path = program / "metadata.json"
    path.write_text(path.read_text().replace('"2.0"', '"9.0"'))


def altered(program):
    content = bytearray((program / "main.mlirb").read_bytes())
    content[20:400:7] = bytes(byte ^ 0x55 for byte in content[20:400:7])
    (program / "main.mlirb").write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "reason"), [(newer, r'Asset version "9\.0" is not supported'), (altered, "")]
)
def test_compiler_errors_and_crashes_are_one_line(damaged, tmp_path, damage, reason):
    damage(damaged / PROGRAM)
    with pytest.raises(BundleError, match=rf"Core AI cannot compile it \({reason}"):
        compile_program(damaged / PROGRAM, tmp_path / "compiled")


def test_a_full_disk_is_one_line(damaged, tmp_path, monkeypatch):
    """The compiler writes to a mapped file, so a full disk is a SIGBUS, which a child here sends itself."""
    child = tmp_path / "child.sh"
    child.write_text("#!/bin/sh\nkill -BUS $$\n")
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    full = os.strerror(errno.ENOSPC)
    with (
        pytest.warns(UserWarning, match=full),
        pytest.raises(BundleError, match=rf"cannot write Core AI's compiled programs \({full}\)"),
    ):
        compiled_program(damaged / PROGRAM, "0" * 64)
    assert not list(tmp_path.rglob("*.aimodelx"))
