"""Threads for a process that may use a part of the machine only: a container, or cores of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_runtime.backends import machine

RUN = """
import os, sys
from pathlib import Path
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from voxcpm_runtime.backends.portable import PortableStepModel
model = PortableStepModel(Path(sys.argv[1]))
for task in os.listdir("/proc/self/task"):
    print(*os.sched_getaffinity(int(task)), sep=",")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for the cores of each thread")
def test_no_thread_is_on_a_core_that_is_not_ours(lab: Any) -> None:
    """ONNX Runtime's own choice is a thread bound to each of the machine's cores."""
    package = lab.package(lambda x: lab.mb.add(x=x, y=np.float32(1)), {"x": np.ones(4, np.float32)})
    cores = subprocess.run(
        [sys.executable, "-c", RUN, package],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    assert set(cores) == {str(min(os.sched_getaffinity(0)))}


@pytest.mark.parametrize(
    ("own", "limit", "expected"),
    [
        ("0::/", "200000 100000", 2),
        ("0::/", "250000 100000", 2),
        ("0::/", "50000 100000", 1),
        ("0::/", "1200000 100000", None),
        ("0::/", "max 100000", None),
        ("12:cpu:/\n0::/user.slice/app", "300000 100000", 3),
        ("12:cpu:/", "200000 100000", None),
        ("0::/", None, None),
        ("0::/", "", None),
    ],
)
def test_a_limit_on_processor_time_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, limit: str | None, expected: int | None
) -> None:
    """The limit of a control group, as a container has one, on a machine of eight cores."""
    groups = tmp_path / "cgroup"
    groups.write_text(own)
    folder = tmp_path / own.rsplit("0::/", maxsplit=1)[-1] if "0::/" in own else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    if limit is not None:
        (folder / "cpu.max").write_text(limit)
    monkeypatch.setattr(machine, "_CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(machine, "_OWN_GROUPS", groups)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(machine, "cores", lambda: 8)

    assert machine.fair_threads() == expected
