import shutil
import subprocess
import sys

import pytest
import soundfile

from voxcpm_runtime.bundle import opening

WEIGHTS = "int8/locdit_step.mlpackage/Data/com.apple.CoreML/weights/weight.bin"


def test_first_command_speaks_without_importing_converters(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "empty"))
    program = (
        "import sys; from voxcpm_runtime.commands.cli import main; "
        "code = main(['generate', '--text', 'Hello.', '--quiet', '-o', 'hello.wav']); "
        "heavy = ('torch', 'coremltools', 'scipy', 'sympy', 'voxcpm_conversion'); "
        "print(code, [name for name in heavy if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert ran.stdout == "0 []\n"
    assert soundfile.info(tmp_path / "hello.wav").duration > 0.3


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / WEIGHTS).write_bytes(bytes((folder / WEIGHTS).stat().st_size)),
        lambda folder: (folder / "manifest.json").write_text("{"),
    ],
    ids=["altered", "manifest"],
)
def test_damaged_installation_advises_reinstalling(damage, tmp_path, monkeypatch, refusal):
    folder = tmp_path / "default_bundle"
    shutil.copytree(opening.DEFAULT_BUNDLE, folder)
    damage(folder)
    monkeypatch.setattr(opening, "DEFAULT_BUNDLE", folder)
    line = refusal("generate", "--text", "Hello.", "-o", tmp_path / "hello.wav")
    assert "install voxcpm-coreml again" in line


def test_missing_precision_of_the_default_bundle_says_how_to_convert(refusal):
    line = refusal("generate", "--text", "Hello.", "--precision", "fp16", "-o", "hello.wav")
    assert "the built-in voice is available in int8 only; for fp16, convert its checkpoint " in line
