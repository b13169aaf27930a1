"""A conversion for macOS 27 that is interrupted or runs out of disk leaves no bundle, and is resumed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from voxcpm_constants.manifest import Manifest, check_files
from voxcpm_conversion import convert
from voxcpm_conversion.core_ai import packages
from voxcpm_runtime.commands import cli

pytest.importorskip("coreai_torch", exc_type=ImportError)

# Those that take the least time, which is still enough to be interrupted in.
TWO = ("audio_vae_decoder", "locdit_step")
WORDS = ("--target", "macos27", "--precision", "fp32", "--max-length", "48", "--prefill-chunk", "1")
RESUMED = f"""
import sys
from voxcpm_conversion import convert
from voxcpm_runtime.commands.cli import main

declare = convert.declare_step_models
convert.declare_step_models = lambda a, sizes, **_: {{name: declare(a, sizes)[name] for name in {TWO}}}
sys.exit(main())
"""


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[str]], int]]:
    """interrupted(words): the exit code of a command in which Ctrl-C is pressed while a program is exported."""
    # A background job of a shell ignores the signal, unless it asks for it.
    before, export = signal.signal(signal.SIGINT, signal.default_int_handler), packages.export_program
    timers = []

    def begin(*given: Any, **options: Any) -> Any:
        timers.append(threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)))
        timers[-1].start()
        return export(*given, **options)

    def run(words: list[str]) -> int:
        with monkeypatch.context() as patched:
            patched.setattr(packages, "export_program", begin)
            code = cli.main(words)
            (timer,) = timers
            timer.join()
            return code

    yield run
    signal.signal(signal.SIGINT, before)


def test_a_full_disk_and_ctrl_c_leave_no_bundle_and_the_same_command_resumes(
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    interrupted: Callable[[list[str]], int],
) -> None:
    words = ["convert", str(tiny_checkpoint), "-o", str(tmp_path / "b"), *WORDS]
    usage, asked, declare = shutil.disk_usage(tmp_path), [], convert.declare_step_models

    def full(path: Path) -> object:
        """No room for the second program: Core AI's writer would end the process."""
        asked.append(path)
        return usage._replace(free=1000 if len(asked) > 1 else usage.free)

    monkeypatch.setattr(
        convert, "declare_step_models", lambda a, sizes, **_: {name: declare(a, sizes)[name] for name in TWO}
    )
    with monkeypatch.context() as patched:
        patched.setattr(packages.shutil, "disk_usage", full)
        assert cli.main(words) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"no room for VoxCPM .*: it needs \d+\.\d MB, and 0\.0 MB are free", said)
    assert [path.name for path in tmp_path.iterdir()] == [".b.partial"]
    (first,) = tmp_path.glob(".b.partial/fp32/[!.]*.aimodel")
    written = (first / "main.mlirb").stat().st_mtime_ns

    assert interrupted(words) == 130
    said = capsys.readouterr().err
    assert "error: interrupted" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == [".b.partial"]
    assert list(tmp_path.glob(".b.partial/fp32/[!.]*.aimodel")) == [first]

    # In a process of its own, since libraries also print and warn when they are imported.
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", RESUMED, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    said = [line for line in done.stderr.splitlines() if line.strip()]
    # Off a terminal a line of progress comes every ten seconds only.
    assert first.stem not in {line.split()[0].rstrip(":") for line in said}
    assert "2 step models in fp32 for macOS27" in " ".join(" ".join(said).split())
    assert len(said) <= 8
    check_files(tmp_path / "b", Manifest.read(tmp_path / "b").files, digests=True)
    assert {path.stem for path in (tmp_path / "b" / "fp32").iterdir()} == set(TWO)
    assert (tmp_path / "b" / "fp32" / first.name / "main.mlirb").stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
