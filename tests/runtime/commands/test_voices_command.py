"""The commands `voices add | list | show | remove`, and `--voice` wherever a prompt can be given."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxcpm_runtime.commands import cli
from voxcpm_runtime.voxcpm import VoxCPM


@pytest.fixture(autouse=True)
def _recordings(folder, monkeypatch):
    """Put recordings into the working directory, and a store of voices beside them."""
    monkeypatch.setenv("VOXCPM_COREML_VOICES", str(folder / "voices"))
    rng = np.random.default_rng(0)
    for name in ("prompt.wav", "voice.wav"):
        soundfile.write(name, rng.uniform(-0.5, 0.5, 100), 1000, subtype="FLOAT")


def run(capsys, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


ADD = ("--prompt", "prompt.wav", "--prompt-text", "so it is ")


def test_default_means_the_checkpoints_own_voice(speaking, folder, capsys):
    code, _, err = run(capsys, "voices", "add", "default", speaking, *ADD)
    assert (code, err.count("\n")) == (2, 1)
    assert "default is the checkpoint's own voice; choose another name" in err
    run(capsys, "voices", "add", "ada", speaking, *ADD)
    (folder / "voices" / "ada.voice").rename(folder / "voices" / "default.voice")

    said = ("generate", speaking, "-t", "hello.", "--seed", 3, "-q", "-o")
    assert run(capsys, *said, "own.wav") == (0, "", "")
    assert run(capsys, *said, "default.wav", "--voice", "default") == (0, "", "")
    assert Path("own.wav").read_bytes() == Path("default.wav").read_bytes()
    assert "default is the checkpoint's own voice, which has no file" in run(capsys, "voices", "list")[1]


def test_a_voice_is_added_listed_shown_used_and_removed(speaking, folder, capsys):
    code, out, _ = run(capsys, "voices", "add", "ada", speaking, *ADD)
    assert (code, out.strip().endswith("prompt of 5 patches: 'so it is'")) == (0, True)

    code, out, _ = run(capsys, "voices", "list")
    assert code == 0
    assert out.startswith("ada: voxcpm")

    code, out, _ = run(capsys, "voices", "show", "ada")
    shown = json.loads(out)
    assert (shown["name"], shown["prompt_patches"], shown["turns"][0]["text"]) == ("ada", 5, "so it is ")
    assert shown["provenance"]["prompt"] == "prompt.wav"

    expected = VoxCPM.from_bundle(speaking).generate("hello.", "prompt.wav", "so it is ", seed=3)
    np.testing.assert_array_equal(
        VoxCPM.from_bundle(speaking).generate("hello.", voice="ada", seed=3), expected
    )
    for voice in ("ada", folder / "voices" / "ada.voice"):
        for command in ("generate", "clone"):
            code, _, _ = run(
                capsys, command, speaking, "--voice", voice, "-t", "hello.", "--seed", 3, "-o", "a.wav", "-q"
            )
            assert code == 0
            samples, _ = soundfile.read("a.wav", dtype="int16")
            np.testing.assert_array_equal(samples, np.round(np.clip(expected, -1, 1) * 32767))

    assert run(capsys, "voices", "remove", "ada")[0] == 0
    assert not list((folder / "voices").iterdir())
    assert "ada" not in run(capsys, "voices", "list")[1]


def test_a_batch_takes_voices_by_line_and_for_all(speaking, batch, folder, capsys):
    assert run(capsys, "voices", "add", "ada", speaking, *ADD)[0] == 0
    assert run(capsys, "voices", "add", "bob", speaking, "-pa", "voice.wav", "-pt", "so ")[0] == 0

    lines = [
        {"text": "hello.", "output": "all.wav", "seed": 3},
        {"text": "hello.", "output": "own.wav", "seed": 3, "voice": "bob"},
        {"text": "hello.", "output": "none.wav", "seed": 3, "voice": None},
        {
            "text": "hello.",
            "output": "audio.wav",
            "seed": 3,
            "prompt": "prompt.wav",
            "prompt_text": "so it is ",
        },
        {"text": "hello.", "output": "both.wav", "voice": "bob", "prompt": "prompt.wav", "prompt_text": "a"},
        {"text": "hello.", "output": "who.wav", "voice": "eve"},
    ]
    code, _, err = batch(lines, "--voice", "ada")

    assert code == 1
    assert "line 5: a voice replaces prompt and reference" in err
    assert "line 6: no voice eve (there are: ada, bob, alloy" in err
    tts = VoxCPM.from_bundle(speaking)
    recordings = {
        "all": ("prompt.wav", "so it is "),
        "own": ("voice.wav", "so "),
        "none": (),
        "audio": ("prompt.wav", "so it is "),
    }
    for name, recording in recordings.items():
        samples, _ = soundfile.read(folder / "out" / f"{name}.wav", dtype="int16")
        audio = tts.generate("hello.", *recording, seed=3)
        np.testing.assert_array_equal(samples, np.round(np.clip(audio, -1, 1) * 32767))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("voices", "add", "ada", "BUNDLE", *ADD), "a voice ada already exists"),
        (("voices", "add", "a/b", "BUNDLE", *ADD), "voice name: expected"),
        (("voices", "add", "eve", "BUNDLE"), "a voice needs a recording"),
        (
            ("voices", "add", "eve", "BUNDLE", "--prompt", "prompt.wav", "--reference", "voice.wav"),
            "--prompt needs --prompt-text or --prompt-file",
        ),
        (("voices", "remove", "eve"), "no voice eve (there are: ada, alloy"),
        (("generate", "BUNDLE", "-t", "a", "-v", "eve"), "no voice eve (there are: ada, alloy"),
        (("generate", "BUNDLE", "-t", "a", "-v", "eve.voice"), "voice eve.voice: no such file"),
        (("generate", "BUNDLE", "-t", "a", "-v", "ada", *ADD), "a voice replaces prompt and reference"),
        (("design", "BUNDLE", "-t", "a", "-v", "ada"), "not from a recording, got --voice"),
        (("clone", "BUNDLE", "-t", "a"), "or a --voice"),
    ],
)
def test_what_cannot_be_done_is_one_line(speaking, capsys, arguments, message):
    assert run(capsys, "voices", "add", "ada", speaking, *ADD)[0] == 0

    code, _, err = run(capsys, *(speaking if part == "BUNDLE" else part for part in arguments))

    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
