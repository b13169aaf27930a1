"""Commands without a bundle use the built-in voice."""

from __future__ import annotations

import importlib.metadata

import pytest
import soundfile

from voxcpm_constants.errors import InputError
from voxcpm_conversion import default_bundle
from voxcpm_runtime.bundle.default import default_bundle as found
from voxcpm_runtime.commands.cli import main


def test_generate_speaks_without_a_bundle(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(default_bundle.platformdirs, "user_cache_dir", lambda _: str(tmp_path / "cache"))
    output = tmp_path / "speech.wav"

    assert main(["generate", "--text", "Hello there", "-o", str(output), "--seed", "1"]) == 0

    assert soundfile.info(output).duration > 0.3
    assert "seed 1" in capsys.readouterr().out
    # The second time the bundle exists already.
    monkeypatch.setattr(default_bundle, "convert", None)
    assert found() == default_bundle.default_bundle()


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
    with pytest.raises(InputError, match="name one"):
        found()
