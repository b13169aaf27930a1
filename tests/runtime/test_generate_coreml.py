import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxcpm_runtime import VoxCPM
from voxcpm_runtime.audio.pcm import pcm16

SCRIPT = Path(__file__).parents[2] / "generate_coreml.py"
TEXT, TRANSCRIPT = "hello there, my friend.", "what i say. "
MODES = {
    "zero-shot": (),
    "continuation": ("prompt",),
    "reference": ("reference",),
    "combined": ("prompt", "reference"),
}


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the script in `tmp_path`; returns its exit code."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["generate_coreml.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        return ended.value.code

    return run


def recordings(tts, mode):
    """Paths of the mode's recordings, by kind."""
    rate, rng = tts.bundle.architecture.input_sample_rate, np.random.default_rng(0)
    for kind in MODES[mode]:
        # At another rate, and no whole number of patches.
        soundfile.write(f"{kind}.wav", 0.1 * rng.standard_normal((rate // 12, 2)), rate // 2)
    return {kind: f"{kind}.wav" for kind in MODES[mode]}


@pytest.mark.parametrize(
    ("bundle", "precision", "mode"),
    [
        ("built-in", "int8", "zero-shot"),
        ("built-in", "int8", "continuation"),
        ("tiny_bundle", "fp16", "zero-shot"),
        ("tiny_bundle", "int8", "continuation"),
        ("tiny_bundle_15", "int4", "continuation"),
        *(("second_bundle", "fp32", mode) for mode in MODES),
    ],
)
def test_samples_are_those_of_generate(bundle, precision, mode, request, run):
    folder = None if bundle == "built-in" else request.getfixturevalue(bundle)
    tts = VoxCPM.from_bundle(folder, precision)
    given = recordings(tts, mode)
    text = {"prompt_text": TRANSCRIPT} if "prompt" in given else {}
    flags = [word for kind, path in given.items() for word in (f"--{kind}", path)]
    flags += ["--prompt-text", TRANSCRIPT] if text else []
    flags += ["--bundle", folder] if folder else []
    assert run("--text", TEXT, "--precision", precision, "--seed", 7, "--steps", 6, "--cfg", 1.7,
               "--min-len", 4, "--max-len", 12, "--output", "script.wav", *flags) == 0  # fmt: skip
    said = tts.generate(
        TEXT, seed=7, inference_timesteps=6, cfg_value=1.7, min_len=4, max_len=12, retry_badcase=False,
        every_word=False, zero_shot=True, **text, **{f"{kind}_wav_path": path for kind, path in given.items()},
    )  # fmt: skip
    samples, rate = soundfile.read("script.wav", dtype="int16")
    assert rate == tts.sample_rate
    np.testing.assert_array_equal(samples, pcm16(said))


def test_without_the_stop_head_speech_has_the_maximum_length(run):
    assert run("--text", "a.", "--seed", 1, "--max-len", 21, "--no-stop", "--output", "long.wav") == 0
    tts = VoxCPM.from_bundle()
    assert soundfile.info("long.wav").duration == pytest.approx(21 * tts.bundle.architecture.patch_seconds)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bundle", "nowhere"], "nowhere: not a bundle"),
        (["--prompt", "a.wav"], "--prompt and --prompt-text belong together"),
        (["--prompt", "a.wav", "--prompt-text", "a"], "a.wav"),
        (["--reference", "a.wav"], "--reference needs VoxCPM2"),
        (["--text", "Hé"], "no token for 'é'"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments, message, run, capsys, tmp_path):
    assert run("--text", "hello.", "--output", "o.wav", *arguments) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())
