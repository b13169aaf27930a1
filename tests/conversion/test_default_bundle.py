"""Commands without a bundle use the built-in voice."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest
import soundfile

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.speech_profile import SpeechProfile
from voxcpm_conversion import default_bundle
from voxcpm_runtime.bundle.default import default_bundle as found
from voxcpm_runtime.commands.cli import main


def test_generate_speaks_without_a_bundle(tmp_path, monkeypatch, capsys, default_cache):
    """The first call, a fixture's, converted; the bundle is there from then on."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(default_cache))
    monkeypatch.setattr("voxcpm_conversion.convert.convert", None)
    output = tmp_path / "speech.wav"

    assert main(["generate", "--text", "Hello there", "-o", str(output), "--seed", "1"]) == 0

    assert soundfile.info(output).duration > 0.3
    assert "seed 1" in capsys.readouterr().out
    assert found() == default_bundle.default_bundle()
    assert found().parent == default_cache / "bundles"
    speech = SpeechProfile.beside(default_bundle.DEFAULT_CHECKPOINT)
    assert speech is not None
    assert Manifest.read(found()).speech == speech


def test_a_bundle_that_is_there_needs_no_pytorch(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    folder = tmp_path / "bundles" / default_bundle.bundle_name()
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    program = (
        "import sys; from voxcpm_runtime.bundle.default import default_bundle; "
        "print(default_bundle(), 'torch' in sys.modules)"
    )

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout == f"{folder} False\n"


def test_without_the_conversion_extra_the_error_says_what_to_install(monkeypatch):
    def without_torch():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(default_bundle, "default_bundle", without_torch)
    with pytest.raises(InputError, match=r"needs torch: name a bundle, or .*voxcpm-coreml\[convert\]"):
        found()


def test_an_installation_without_a_default_says_so(monkeypatch):
    monkeypatch.setattr(
        "voxcpm_runtime.bundle.default.entry_points", lambda group: importlib.metadata.EntryPoints()
    )
    with pytest.raises(InputError, match="no built-in voice; name a bundle"):
        found()
