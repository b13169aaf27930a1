"""Optional rooms: each can be deleted, and the rest imports and speaks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = {
    "voxcpm_constants": REPOSITORY / "constants",
    "voxcpm_runtime": REPOSITORY / "runtime",
    "voxcpm_server": REPOSITORY / "server",
}
ROOMS = [
    "voxcpm_runtime/backends/core_ai",
    "voxcpm_runtime/backends/gpu",
    "voxcpm_runtime/doctor",
    "voxcpm_runtime/english",
    "voxcpm_server/cluster",
    "voxcpm_server/elevenlabs",
    "voxcpm_server/jobs",
    "voxcpm_server/page",
    "voxcpm_server/wyoming",
]
IMPORT_AND_SPEAK = """
import importlib, pathlib, sys
for root in sys.argv[1:]:
    for path in pathlib.Path(root).rglob("*.py"):
        if "cluster" not in path.parts:  # needs Ray
            parts = path.relative_to(pathlib.Path(root).parent).with_suffix("").parts
            importlib.import_module(".".join(parts).removesuffix(".__init__"))
from starlette.testclient import TestClient
from voxcpm_runtime import VoxCPM
tts = VoxCPM.from_bundle(threads=1)
assert len(tts.generate("hello there.", seed=1)) > 10_000
if len(sys.argv) > 2:
    from voxcpm_server.application import create_app
    with TestClient(create_app(tts), base_url="http://localhost") as client:
        while client.get("/ready").status_code != 200:
            pass
        speech = {"model": "tts-1", "voice": "default", "input": "hello there.", "response_format": "pcm"}
        answer = client.post("/v1/audio/speech", json=speech)
        assert answer.status_code == 200 and len(answer.content) > 10_000, answer.text
        assert client.get("/about").status_code == 200
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages; the built-in voice's weights are linked."""
    for name, root in PACKAGES.items():
        ignored = shutil.ignore_patterns("__pycache__", "default_bundle", "built_in_voices")
        shutil.copytree(root / name, tmp_path / name, ignore=ignored)
    for data in ("default_bundle", "voices/built_in_voices"):
        (tmp_path / "voxcpm_runtime" / data).symlink_to(REPOSITORY / "runtime" / "voxcpm_runtime" / data)
    return tmp_path


def imports_and_speaks(tree: Path, cache: Path) -> None:
    roots = [str(tree / name) for name in PACKAGES]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_AND_SPEAK, *roots],
        env={**os.environ, "PYTHONPATH": str(tree), "VOXCPM_COREML_CACHE": str(cache)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_core_imports_and_speaks_without_any_of_them(tree: Path, tmp_path: Path) -> None:
    for room in ROOMS:
        shutil.rmtree(tree / room)
    imports_and_speaks(tree, tmp_path / "cache")


@pytest.mark.long
@pytest.mark.parametrize("room", ROOMS)
def test_the_rest_imports_and_speaks_without(
    room: str, tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shutil.rmtree(tree / room)
    imports_and_speaks(tree, tmp_path_factory.getbasetemp() / "rooms")


IMPORT_CONVERSION = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
for path in root.rglob("*.py"):
    parts = path.relative_to(root.parent).with_suffix("").parts
    importlib.import_module(".".join(parts).removesuffix(".__init__"))
from voxcpm_constants.errors import InputError
from voxcpm_constants.step_models import StepSizes
from voxcpm_conversion.convert import check_forms
check_forms(["fp16"], StepSizes(), "macOS14")
try:
    check_forms(["fp16"], StepSizes(), "macOS27")
except InputError as error:
    assert "no converter to Core AI" in str(error)
else:
    raise AssertionError("Core AI's converter was found")
"""


def test_conversion_needs_core_ai_for_its_own_target_only(tree: Path) -> None:
    pytest.importorskip("torch")
    package = tree / "voxcpm_conversion"
    ignored = shutil.ignore_patterns("__pycache__", "default_checkpoint", "core_ai")
    shutil.copytree(REPOSITORY / "conversion" / "voxcpm_conversion", package, ignore=ignored)

    done = subprocess.run(
        [sys.executable, "-c", IMPORT_CONVERSION, str(package)],
        env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
