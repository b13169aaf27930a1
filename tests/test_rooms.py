"""Optional rooms: each can be deleted with its tests, and the tests of the core still pass."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ROOTS = ("constants", "conversion", "runtime", "server", "training", "validation")
ROOMS = {
    "conversion/voxcpm_conversion/core_ai": ["conversion/test_core_ai*.py"],
    "conversion/voxcpm_conversion/fluid": ["conversion/test_fluid.py"],
    "runtime/voxcpm_runtime/backends/core_ai": [
        "runtime/backends/core_ai",
        "runtime/doctor/test_doctor_core_ai.py",
    ],
    "runtime/voxcpm_runtime/batch": ["runtime/batch"],
    "runtime/voxcpm_runtime/doctor": ["runtime/doctor"],
    "runtime/voxcpm_runtime/text/english": [
        "runtime/text/english",
        "runtime/text/test_text_normalization.py",
        "runtime/speech/test_expected_length.py",
        "runtime/speech/test_modes.py",
        "runtime/speech/test_plan.py",
    ],
    "runtime/voxcpm_runtime/speech/markup": [
        "runtime/speech/markup",
        "runtime/speech/test_modes.py",
        "server/api/test_requests.py",
    ],
    "server/voxcpm_server/cluster": ["server/cluster"],
    "server/voxcpm_server/elevenlabs": [
        "server/elevenlabs",
        "server/api/test_requests.py",
        "server/streams/test_agents.py",
        "server/api/test_reports.py",
    ],
    "server/voxcpm_server/jobs": ["server/jobs"],
    "server/voxcpm_server/page": ["server/page"],
    "server/voxcpm_server/wyoming": ["server/wyoming"],
}
"""Each room's folder, its tests, and files of the core's tests that use it."""
IMPORT = """
import importlib, pathlib, sys
for root in map(pathlib.Path, sys.argv[1:]):
    for path in root.rglob("*.py"):
        # Validation may need any room; the others need packages of their own.
        if not {"voxcpm_validation", "voxcpm_training", "cluster"} & set(path.parts):
            parts = path.relative_to(root).with_suffix("").parts
            importlib.import_module(".".join(parts).removesuffix(".__init__"))
"""
CONVERT = """
from voxcpm_constants.errors import InputError
from voxcpm_constants.step_models import StepSizes
from voxcpm_conversion.convert import check_forms
from voxcpm_conversion.forms import LAYOUTS, optional_module
check_forms(["fp16"], StepSizes(), "macOS14")
try:
    check_forms(["fp16"], StepSizes(), "macOS27")
except InputError as error:
    assert "--target macos27: this installation lacks core_ai" in str(error)
else:
    raise AssertionError("Core AI's converter was found")
try:
    optional_module(LAYOUTS["fluid"], "--layout fluid")
except InputError as error:
    assert "this installation lacks fluid" in str(error)
else:
    raise AssertionError("the layout was found")
"""
SERVE = """
from starlette.testclient import TestClient
from voxcpm_runtime import VoxCPM
from voxcpm_server.application import create_app
with TestClient(create_app(VoxCPM.from_bundle(threads=1)), base_url="http://localhost") as client:
    speech = {"model": "tts-1", "voice": "default", "input": "hello there.", "response_format": "pcm"}
    answer = client.post("/v1/audio/speech", json=speech)
    assert answer.status_code == 200 and len(answer.content) > 10_000, answer.text
    assert client.get("/about").status_code == 200
"""
FEW_TESTS = ("test_imports.py", "runtime/text", "runtime/speech/test_session.py")
MORE_TESTS = ("runtime/speech", "runtime/voices")
SERVERS_TESTS = ("server/api", "server/streams", "server/speech")
"""Tests that disable jobs, and so need that room."""


@pytest.mark.long
def test_core_passes_without_any_optional_package(tmp_path):
    tree = tree_without(ROOMS, tmp_path / "tree")
    check(tree, FEW_TESTS)
    run(tree, "-c", CONVERT)


@pytest.mark.long
@pytest.mark.parametrize("room", ROOMS)
def test_rest_passes_without(room, tmp_path):
    more = () if "jobs" in room else SERVERS_TESTS
    check(tree_without([room], tmp_path / "tree"), (*FEW_TESTS, *MORE_TESTS, *more))


def tree_without(rooms, tree):
    """A copy of this tree without these rooms and their tests."""
    ignored = shutil.ignore_patterns(".*", "build", "dist", "demo", "__pycache__", "*.safetensors")
    for name in (*ROOTS, "tests", "docs"):
        shutil.copytree(REPOSITORY / name, tree / name, ignore=ignored)
    for name in ("pyproject.toml", "Makefile"):
        shutil.copy(REPOSITORY / name, tree)
    for room in rooms:
        shutil.rmtree(tree / room)
        for path in (path for pattern in ROOMS[room] for path in (tree / "tests").glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return tree


def check(tree, tests):
    """Import all modules of a tree, and run the fast ones of these tests there: it has no checkpoint to convert."""
    run(tree, "-c", IMPORT, *(str(tree / root) for root in ROOTS))
    run(tree, "-c", SERVE)
    fast = ("-p", "no:cacheprovider", "-x", "-m", "default and not converts")
    run(tree, "-m", "pytest", *fast, *(f"tests/{name}" for name in tests))


def run(tree, *arguments):
    roots = os.pathsep.join(str(tree / root) for root in ROOTS)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tree, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": roots, "VOXCPM_COREML_CACHE": str(tree / "cache"), "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
