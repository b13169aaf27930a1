"""The first sound: the wheel of `make wheel`, in the environment of `make test-wheel`, speaks offline, without PyTorch.

An unpacked source archive makes the same wheel.
"""

import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import soundfile

from voxcpm_constants.manifest import Manifest

pytestmark = pytest.mark.wheel

REPOSITORY = Path(__file__).resolve().parents[1]
BUNDLE = "voxcpm_runtime/default_bundle"
# The longest that the best later call may take where a plain interpreter that imports numpy takes NUMPY_SECONDS. The
# target is 1 s; measured were 0.9 to 1.1 s.
MAX_SECONDS = 1.3
NUMPY_SECONDS = 0.13
# The first call on a machine lowers the step models and reads the bundle from disk; a minute at most is documented.
FIRST_SECONDS = 20.0
CONVERTS_ONLY = ("torch", "coremltools", "sympy", "scipy")
"""Packages that speaking does not need; coremltools and sympy are dependencies on a Mac."""


@pytest.fixture(scope="module")
def wheel():
    wheels = list((REPOSITORY / "dist").glob("voxcpm_coreml-*.whl"))
    assert len(wheels) == 1, "expected one wheel in dist/; run: make wheel"
    return wheels[0]


def offline(cache):
    """A command prefix that disables the network, and an environment with dead proxies."""
    dead = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    variables = {**os.environ, **dead, "HF_HUB_OFFLINE": "1", "VOXCPM_COREML_CACHE": str(cache)}
    unshare = ["unshare", "--user", "--map-root-user", "--net"]
    if (
        shutil.which("unshare")
        and subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0
    ):
        return unshare, variables
    return [], variables


def test_wheel_contains_the_bundle_and_not_its_checkpoint(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    files = Manifest.read(REPOSITORY / "runtime" / BUNDLE).files
    assert {f"{BUNDLE}/{name}" for name in ("manifest.json", *files)} <= {*names}
    assert len([name for name in names if name.endswith(".voice")]) == 13
    assert not [
        name for name in names if name.endswith(".safetensors") and "default_bundle/vectors" not in name
    ]
    assert "voxcpm_conversion/default_checkpoint/README.md" in names
    assert {"index.html", "style.css", "main.js"} <= {
        name.rpartition("/")[2] for name in names if name.startswith("voxcpm_server/page/assets/")
    }


def test_sdist_builds_the_same_wheel(wheel, tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--target", tmp_path / "hatchling", "hatchling"], check=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "hatchling")},
        cwd=REPOSITORY,
        check=True,
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    (source,) = (tmp_path / "unpacked").iterdir()
    subprocess.run([*pip, "wheel", "--no-deps", "-w", tmp_path, source], check=True)
    made, expected = (zipfile.ZipFile(path) for path in (next(tmp_path.glob("*.whl")), wheel))
    assert {entry.filename: entry.CRC for entry in made.infolist()} == {
        entry.filename: entry.CRC for entry in expected.infolist()
    }


def test_installed_wheel_speaks_offline_without_pytorch(tmp_path):
    if sys.platform != "darwin":
        found = f"from importlib.util import find_spec; print([n for n in {CONVERTS_ONLY} if find_spec(n)])"
        listed = subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=True)
        assert listed.stdout == "[]\n"
    before, variables = offline(tmp_path / "cache")
    taken, numpy_taken = [], []
    for call in range(6):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import numpy"], check=True)
        numpy_taken.append(time.perf_counter() - started)
        output = tmp_path / "new" / "folder" / f"{call}.wav"
        speak = ("generate", "--text", "Hello there.", "--seed", "1", "-o", output)
        command = [*before, Path(sys.executable).with_name("voxcpm-coreml"), *speak]
        started = time.perf_counter()
        ran = subprocess.run(
            command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        taken.append(time.perf_counter() - started)
        assert ran.returncode == 0, ran.stderr
        assert ran.stderr == ""
        assert soundfile.info(output).duration > 0.3
    slower = max(1.0, min(numpy_taken) / NUMPY_SECONDS)
    sys.stdout.write(
        f"first {taken[0]:.2f} s, best other {min(taken[1:]):.2f} s, numpy {min(numpy_taken):.3f} s\n"
    )
    assert min(taken[1:]) < MAX_SECONDS * slower, (taken, numpy_taken)
    assert taken[0] < FIRST_SECONDS, (taken, numpy_taken)
