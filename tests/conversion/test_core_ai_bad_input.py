"""A conversion for macOS 27 that is interrupted or runs out of disk leaves no bundle, and is resumed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest, check_files
from voxcpm_conversion import convert
from voxcpm_conversion.core_ai import packages
from voxcpm_runtime.commands import cli

pytest.importorskip("coreai_torch", exc_type=ImportError)

# Those that take the least time, which is still enough to be interrupted in.
TWO = ("audio_vae_decoder", "locdit_step")
WORDS = ("--target", "macos27", "--precision", "fp32", "--max-length", "48", "--prefill-chunk", "1")
# A background job of a shell ignores the signal, and so do its children, unless they ask for it.
INTERRUPTED = f"""
import os, signal, sys, threading
from voxcpm_conversion import convert
from voxcpm_conversion.core_ai import packages
from voxcpm_runtime.commands.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)
declare, export = convert.declare_step_models, packages.export_program

def interrupted(*given, **options):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    return export(*given, **options)

convert.declare_step_models = lambda a, sizes: {{name: declare(a, sizes)[name] for name in {TWO}}}
packages.export_program = interrupted
sys.exit(main())
"""


def test_a_full_disk_and_ctrl_c_leave_no_bundle_and_the_same_command_resumes(
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["convert", str(tiny_checkpoint), "-o", str(tmp_path / "b"), *WORDS]
    usage, asked, declare = shutil.disk_usage(tmp_path), [], convert.declare_step_models

    def full(path: Path) -> object:
        """No room for the second program: Core AI's writer would end the process."""
        asked.append(path)
        return usage._replace(free=1000 if len(asked) > 1 else usage.free)

    monkeypatch.setattr(
        convert, "declare_step_models", lambda a, sizes: {name: declare(a, sizes)[name] for name in TWO}
    )
    with monkeypatch.context() as patched:
        patched.setattr(packages.shutil, "disk_usage", full)
        assert cli.main(words) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"no room for VoxCPM .*: it needs \d+\.\d MB, and 0\.0 MB are free", said)
    assert [path.name for path in tmp_path.iterdir()] == [".b.partial"]
    (first,) = tmp_path.glob(".b.partial/fp32/[!.]*.aimodel")
    written = (first / "main.mlirb").stat().st_mtime_ns

    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130
    assert "error: interrupted" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [".b.partial"]
    assert list(tmp_path.glob(".b.partial/fp32/[!.]*.aimodel")) == [first]

    assert cli.main(words) == 0
    check_files(tmp_path / "b", Manifest.read(tmp_path / "b").files, digests=True)
    assert {path.stem for path in (tmp_path / "b" / "fp32").iterdir()} == set(TWO)
    assert (tmp_path / "b" / "fp32" / first.name / "main.mlirb").stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_room_is_asked_for_beside_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth and 64 MB: a disk that fills up while Core AI writes ends the process."""
    usage = shutil.disk_usage(tmp_path)._replace(free=1_163_999_999)
    monkeypatch.setattr(packages.shutil, "disk_usage", lambda _: usage)

    with pytest.raises(InputError, match=r"no room for it: it needs 1164\.0 MB"):
        packages._save(None, 1_000_000_000, "it", tmp_path / "a.aimodel")
