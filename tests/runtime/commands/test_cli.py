"""The command line: output of `generate`, user errors, and commands of other packages."""

import json
import re
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxcpm_constants import progress_lines
from voxcpm_runtime import voxcpm
from voxcpm_runtime.commands import cli

REPOSITORY = Path(__file__).resolve().parents[3]


def test_generate_writes_the_speech_of_the_library(speaking, tmp_path, capsys):
    out = tmp_path / "out.wav"
    assert cli.main(["generate", speaking, "--text", "hello.", "--seed", "7", "-o", str(out)]) == 0
    samples, rate = soundfile.read(out, dtype="int16")
    audio = voxcpm.VoxCPM.from_bundle(speaking).generate("hello.", seed=7)
    assert rate == voxcpm.VoxCPM.from_bundle(speaking).sample_rate
    np.testing.assert_array_equal(samples, np.round(np.clip(audio, -1, 1) * 32767))
    line = capsys.readouterr().out.strip()
    assert line.startswith(f"{out}: ")
    assert f", seed 7, {np.count_nonzero(np.abs(audio) > 1)} samples clipped" in line
    assert "real-time factor" in line


def test_the_result_as_json(speaking, tmp_path, capsys, refusal):
    out = tmp_path / "out.wav"
    given = ["generate", speaking, "--text", "hello.", "--seed", "7", "--json", "-o"]
    assert cli.main([*given, str(out)]) == 0
    document = json.loads(capsys.readouterr().out)
    info = soundfile.info(out)
    assert (document["output"], document["seed"], document["samples"]) == (str(out), 7, info.frames)
    assert document["seconds"] == pytest.approx(info.duration, abs=1e-3)
    assert "name a file" in refusal(*given, "-")


@pytest.mark.parametrize("architecture", ["voxcpm"], indirect=True)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--text", ""], "the text is empty"),
        (["--text", "a", "--text-file", "b"], "expected one of --text and --text-file"),
        (["--text-file", "nowhere.txt"], "nowhere.txt: cannot be read"),
        (["--text", "a", "--precision", "fp32"], "it has fp16, int8"),
        (["--text", "a", "--output", "/dev/null/new/out.wav"], "/dev/null is not a folder"),
        (["--text", "a", "--output", "out.txt"], "expected a name that ends in"),
        (["--text", "a", "--lora-path", "b"], "--lora-path needs --model-path or --hf-model-id"),
        (["--text", "a", "--model-path", "b"], "expected one of BUNDLE and --model-path, got both"),
        (["--text", "a", "--nonsense"], "--nonsense"),
    ],
)
def test_invalid_input_exits_with_2_and_writes_nothing(speaking, folder, refusal, options, message):
    assert message in refusal("generate", speaking, *options)
    assert not list(folder.iterdir())


def test_a_byte_order_mark_is_not_text(speaking, tmp_path, refusal):
    (tmp_path / "marked.txt").write_text("\ufeff", encoding="utf-8")
    assert "is empty" in refusal("generate", speaking, "--text-file", tmp_path / "marked.txt")


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("It's me.", "to speak it, use --text or --text-file"),
        ("someone/voice", "expected one of --text and --text-file"),
    ],
)
def test_a_text_in_place_of_the_bundle_is_recognised(refusal, text, end):
    assert refusal("generate", text).endswith(end)


@pytest.mark.parametrize("options", [(), ("--quiet",)])
def test_progress_without_a_terminal_is_periodic_lines(
    speaking, tmp_path, monkeypatch, capsys, models, options
):
    function = models["locdit_step"].function
    models["locdit_step"].function = lambda *given: time.sleep(0.01) or function(*given)
    monkeypatch.setattr(progress_lines, "LINE_SECONDS", 0.05)
    given = ["--text", "hello there.", "--seed", "3", "--no-retry", "-o", str(tmp_path / "a.wav")]
    assert cli.main(["generate", speaking, *given, *options]) == 0
    lines = capsys.readouterr().err.splitlines()
    progress = re.compile(r"\d+ patches, [\d.]+ s of speech, real-time factor")
    assert not lines if options else any(progress.match(line) for line in lines)


def test_warnings_are_lines(speaking, network, tmp_path, capsys):
    network.stop_bias = np.array([1e3, 0], np.float32)
    given = ["--text", "hello there.", "--no-retry", "-o", str(tmp_path / "o.wav")]
    assert cli.main(["generate", speaking, *given]) == 0
    assert "warning: segment 1: the speech was cut off after 34 patches" in capsys.readouterr().err


COMMAND = '''
"""A command of another package."""
from typing import Annotated
import typer
{imports}

def shout(word: Annotated[str, typer.Argument()]) -> None:
    """Say it aloud. And more."""
    typer.echo(word.upper())
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Commands of other packages: one works, one needs torch, one is broken."""
    plugins = {"loud": "", "needy": "import torch.absent", "broken": "import nowhere_at_all"}
    for name, imports in plugins.items():
        (tmp_path / f"plugin_{name}.py").write_text(COMMAND.format(imports=imports))
        monkeypatch.delitem(sys.modules, f"plugin_{name}", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    entries = [EntryPoint(name, f"plugin_{name}:shout", cli.COMMAND_GROUP) for name in plugins]
    monkeypatch.setattr(cli, "entry_points", lambda *, group: entries if group == cli.COMMAND_GROUP else [])


@pytest.mark.usefixtures("installed")
def test_commands_of_other_packages_are_listed_and_imported_when_called(capsys):
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("generate", "inspect", "loud", "needy", "broken", "Say it aloud."))
    assert not {"plugin_loud", "plugin_needy", "plugin_broken"} & set(sys.modules)
    assert cli.main(["loud", "hello"]) == 0
    assert capsys.readouterr().out == "HELLO\n"
    assert cli.main(["needy", "hello"]) == 2
    install = 'install it with: pip install "voxcpm-coreml[convert]"'
    assert f"needy needs torch.absent; {install}" in capsys.readouterr().err
    # A module that no extra installs is a bug, not a user's error.
    with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        cli.main(["broken", "hello"])
