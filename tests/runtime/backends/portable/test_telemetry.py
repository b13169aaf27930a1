"""ONNX Runtime sends nothing about who uses it. From 1.31 on it begins as soon as it is imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

RUN = """
import sys
import numpy as np
from pathlib import Path
from voxcpm_runtime.backends.portable import PortableStepModel
print(*PortableStepModel(Path(sys.argv[1]))({"x": np.ones(4, np.float32)}).values())
"""
LISTEN = """
import voxcpm_validation.listening.recognition
import faster_whisper.vad
import onnxruntime
"""
ASK = "import os, voxcpm_runtime.backends.portable; print(os.environ['ORT_DISABLE_TELEMETRY'])"


def run(program: str, home: Path, *arguments: object, **variables: str) -> str:
    """What the program prints, for a user who has never run it, nor set anything."""
    kept = {k: v for k, v in os.environ.items() if k not in {"ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"}}
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**kept, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(home), **variables},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def telemetry(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if "microsoft" in path.name.lower()]


def test_running_a_step_model_queues_no_telemetry(lab, home: Path) -> None:
    package = lab.package(lambda x: lab.mb.add(x=x, y=np.float32(1)), {"x": np.ones(4, np.float32)})
    assert run(RUN, home, package) == "[2. 2. 2. 2.]\n"
    assert telemetry(home) == []


@pytest.mark.skipif(importlib.util.find_spec("faster_whisper") is None, reason="needs the extra listen")
def test_nor_does_the_recogniser(home: Path) -> None:
    run(LISTEN, home)
    assert telemetry(home) == []


@pytest.mark.parametrize(("given", "kept"), [({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")])
def test_the_users_own_setting_stays(home: Path, given: dict[str, str], kept: str) -> None:
    assert run(ASK, home, **given).strip() == kept
