"""A conversion for macOS 27 that is interrupted or runs out of disk leaves no bundle, and is resumed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest, check_files
from voxcpm_constants.step_models import StepSizes, declare_step_models
from voxcpm_conversion import convert as module
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.convert import convert
from voxcpm_conversion.core_ai import packages

pytest.importorskip("coreai_torch", exc_type=ImportError)

SMALLEST = StepSizes(kv_length=48, prefill_chunks=(1,), encode_patches=(1,))
# Those that take the least time, which is still enough to be interrupted in.
TWO = ("audio_vae_decoder", "locdit_step")
WORDS = ("--target", "macos27", "--precision", "fp32", "--max-length", "48", "--prefill-chunk", "1")
# A background job of a shell ignores the signal, and so do its children, unless they ask for it.
HEARD = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
DECLARED = (
    "from voxcpm_conversion import convert; declare = convert.declare_step_models; "
    f"convert.declare_step_models = lambda a, sizes: {{name: declare(a, sizes)[name] for name in {TWO}}}"
)
PROGRAM = f"{HEARD}; {DECLARED}; from voxcpm_runtime.commands.cli import main; sys.exit(main())"


def test_a_full_disk_is_one_line_and_what_is_there_is_resumed(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Core AI's writer would end the process."""
    usage, asked = shutil.disk_usage(tmp_path), []

    def full(path: Path) -> object:
        asked.append(path)
        return usage._replace(free=1000 if len(asked) > 1 else usage.free)

    opened = Checkpoint.open(tiny_checkpoint)
    declared = declare_step_models(opened.architecture, SMALLEST)
    monkeypatch.setattr(module, "declare_step_models", lambda *_: {name: declared[name] for name in TWO})
    monkeypatch.setattr(packages.shutil, "disk_usage", full)
    with pytest.raises(InputError, match=r"no room for VoxCPM .*: it needs \d+\.\d MB, and 0\.0 MB are free"):
        convert(opened, tmp_path / "b", precisions=("fp32",), sizes=SMALLEST, target="macOS27")
    assert [path.name for path in tmp_path.iterdir()] == [".b.partial"]
    assert len(list(tmp_path.glob(".b.partial/fp32/[!.]*.aimodel"))) == 1


def test_ctrl_c_leaves_no_bundle_and_the_same_command_resumes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    given = [
        sys.executable,
        "-c",
        PROGRAM,
        "convert",
        str(tiny_checkpoint),
        "-o",
        str(tmp_path / "b"),
        *WORDS,
    ]
    with subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob(".b.partial/fp32/[!.]*.aimodel")) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "error: interrupted" in error.splitlines()[-1]
    assert "Traceback" not in error
    (first, *_) = done = list(tmp_path.glob(".b.partial/fp32/[!.]*.aimodel"))
    assert len(done) < 2
    assert not (tmp_path / "b").exists()
    written = (first / "main.mlirb").stat().st_mtime_ns

    subprocess.run(given, capture_output=True, check=True)

    check_files(tmp_path / "b", Manifest.read(tmp_path / "b").files, digests=True)
    assert (tmp_path / "b" / "fp32" / first.name / "main.mlirb").stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
