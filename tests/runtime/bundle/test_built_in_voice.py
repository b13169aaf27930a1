import shutil
import subprocess
import sys

import soundfile

from voxcpm_runtime.bundle import opening


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


def test_damaged_installation_advises_reinstalling_and_a_missing_precision_converting(
    tmp_path, monkeypatch, refusal
):
    speak = ("generate", "--text", "Hello.", "-o", tmp_path / "hello.wav")
    assert "int8 only; for fp16, convert its checkpoint " in refusal(*speak, "--precision", "fp16")
    folder = tmp_path / "default_bundle"
    shutil.copytree(opening.DEFAULT_BUNDLE, folder)
    monkeypatch.setattr(opening, "DEFAULT_BUNDLE", folder)
    weights = folder / "int8/locdit_step.mlpackage/Data/com.apple.CoreML/weights/weight.bin"
    weights.write_bytes(bytes(weights.stat().st_size))
    assert "install voxcpm-coreml again" in refusal(*speak)
    (folder / "manifest.json").write_text("{")
    assert "install voxcpm-coreml again" in refusal(*speak)
