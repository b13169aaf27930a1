"""The command line: output of `generate`, user errors, help, and commands of other packages."""

import json
import os
import re
import subprocess
import sys
import time
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import soundfile

from voxcpm_constants import progress_lines
from voxcpm_runtime import voxcpm
from voxcpm_runtime.audio.pcm import pcm16
from voxcpm_runtime.commands import cli


def test_generate_writes_the_speech_of_the_library(speaking, tmp_path, run, refusal):
    out = tmp_path / "out.wav"
    given = ["generate", speaking, "--text", "hello.", "--seed", "7", "-o"]
    code, line, _ = run(*given, out)
    assert code == 0
    samples, rate = soundfile.read(out, dtype="int16")
    tts = voxcpm.VoxCPM.from_bundle(speaking)
    audio = tts.generate("hello.", seed=7)
    assert rate == tts.sample_rate
    np.testing.assert_array_equal(samples, pcm16(audio))
    assert line.startswith(f"{out}: ")
    assert f", seed 7, {np.count_nonzero(np.abs(audio) > 1)} samples clipped" in line
    assert "real-time factor" in line
    document = json.loads(run(*given, out, "--json")[1])
    assert (document["output"], document["seed"], document["samples"]) == (str(out), 7, len(audio))
    assert document["seconds"] == pytest.approx(len(audio) / rate, abs=1e-3)
    assert "name a file" in refusal(*given, "-", "--json")


@pytest.mark.parametrize("architecture", ["voxcpm"], indirect=True)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--text", ""], "the text is empty"),
        (["--text", "a", "--text-file", "b"], "expected one of --text and --text-file"),
        (["--text-file", "nowhere.txt"], "nowhere.txt: cannot be read"),
        (["--text", "a", "--precision", "fp32"], "it has fp16, int8"),
        (["--text", "a", "--output", "/dev/null/new/out.wav"], "/dev/null is not a folder"),
        (["--text", "a", "--lora-path", "b"], "--lora-path needs --model-path or --hf-model-id"),
        (["--text", "a", "--model-path", "b"], "expected one of BUNDLE and --model-path, got both"),
        (["--text", "a", "--nonsense"], "--nonsense"),
    ],
)
def test_invalid_input_exits_with_2_and_writes_nothing(speaking, folder, refusal, options, message):
    assert message in refusal("generate", speaking, *options)
    assert not list(folder.iterdir())


def test_a_byte_order_mark_is_not_text_and_a_text_is_not_a_bundle(speaking, tmp_path, refusal):
    (tmp_path / "marked.txt").write_text("\ufeff", encoding="utf-8")
    assert "is empty" in refusal("generate", speaking, "--text-file", tmp_path / "marked.txt")
    assert refusal("generate", "It's me.").endswith("to speak it, use --text or --text-file")
    assert refusal("generate", "someone/voice").endswith("expected one of --text and --text-file")


@pytest.mark.parametrize("options", [(), ("--quiet",)])
def test_progress_without_a_terminal_is_periodic_lines(speaking, tmp_path, monkeypatch, run, models, options):
    function = models["locdit_step"].function
    models["locdit_step"].function = lambda *given: time.sleep(0.01) or function(*given)
    monkeypatch.setattr(progress_lines, "LINE_SECONDS", 0.05)
    given = ["--text", "hello there.", "--seed", "3", "--no-retry", "-o", tmp_path / "a.wav"]
    code, _, err = run("generate", speaking, *given, *options)
    assert code == 0
    told = re.findall(r"(?m)^\d+ patches, [\d.]+ s of speech, real-time factor", err)
    assert bool(told) == (not options)
    assert not (options and err)


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
def test_commands_of_other_packages_are_listed_and_imported_when_called(run):
    code, out, _ = run("--help")
    assert code == 0
    assert all(name in out for name in ("generate", "inspect", "loud", "needy", "broken", "Say it aloud."))
    assert not {"plugin_loud", "plugin_needy", "plugin_broken"} & set(sys.modules)
    assert run("loud", "hello") == (0, "HELLO\n", "")
    code, _, err = run("needy", "hello")
    install = 'install it with: pip install "voxcpm-coreml[convert]"'
    assert (code, f"needy needs torch.absent; {install}" in err) == (2, True)
    # A module that no extra installs is a bug, not a user's error.
    with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        run("broken", "hello")


# Without the extras, whose modules cannot be imported.
WITHOUT_EXTRAS = f"""
import sys
sys.modules.update(dict.fromkeys({sorted({name for modules in cli._EXTRAS.values() for name in modules})}))
from voxcpm_runtime.commands.cli import main
sys.exit(main())
"""


def run(*arguments, program=WITHOUT_EXTRAS, **environment):
    given = {**os.environ, "COLUMNS": "80", **environment}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, env=given, check=False
    )


@pytest.mark.parametrize("name", cli.commands())
def test_help_and_misspelt_options_need_no_extra(name):
    helped, misspelt = run(name, "-h"), run(name, "--misspelt")
    assert (helped.returncode, helped.stderr) == (0, b"")
    text = helped.stdout.decode()
    assert text.startswith(f"Usage: voxcpm-coreml {name} ")
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search("<(bool|str|int|float|list|path)", text)
    assert "…" not in text
    assert misspelt.returncode == 2
    assert misspelt.stderr.decode().endswith(f"(see voxcpm-coreml {name} --help)\n")


def test_names_and_brackets_are_whole(capsys):
    assert cli.main(["generate", "--help"]) == 0
    text = capsys.readouterr().out
    assert "-ra, --reference, --reference-audio <REFERENCE>\n" in text
    assert "Read [pause 0.5s], [voice NAME], [rate 1.2]," in text
    assert "--cfg-zero-star, --no-cfg-zero-star\n" in text
    assert "-q, --quiet   " in text
    headings = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert headings == ["Arguments", "Options", "Voice", "Bundle and machine", "Speech"]


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["generate", "--seed"], "generate"),
        (["voices"], "voices"),
        (["voices", "add"], "voices add"),
        (["voices", "add", "--nonsense"], "voices add"),
        (["convert"], "convert"),
    ],
)
def test_a_usage_error_names_the_help_of_its_command(refusal, arguments, command):
    assert refusal(*arguments).endswith(f"(see voxcpm-coreml {command} --help)")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_that_the_locale_cannot_encode_is_escaped(encoding):
    program = """
import sys
from importlib.metadata import EntryPoint
from voxcpm_runtime.commands import cli
cli._RUNTIME_COMMANDS["said"] = EntryPoint("said", "__main__:said", "")
def said() -> None:
    "From – to …"
    print("é–")
sys.exit(cli.main(["said", "--help"]) or cli.main(["said"]))
"""
    ran = run(program=program, PYTHONIOENCODING=encoding)
    assert ran.returncode == 0, ran.stderr
    # In ASCII, click writes its own lines as UTF-8.
    assert ("From – to …" if encoding == "ascii" else "From \\u2013 to \\u2026").encode() in ran.stdout
    assert ran.stdout.splitlines()[-1] == "é–".encode(encoding, "backslashreplace")


WITHOUT_CUDA = " --extra-index-url https://download.pytorch.org/whl/cpu" if sys.platform == "linux" else ""


@pytest.mark.parametrize(
    ("command", "install"),
    [
        (["convert", "a", "-o", "b"], f'"voxcpm-coreml[convert]"{WITHOUT_CUDA}'),
        (["serve"], '"voxcpm-coreml[serve]"'),
        (["validate", "a", "--checkpoint", "b"], f'"voxcpm-coreml[validate]"{WITHOUT_CUDA}'),
    ],
)
def test_a_command_without_its_extra_names_it(command, install):
    ran = run(*command)
    assert ran.returncode == 2
    assert ran.stderr.decode().strip().endswith(f"install it with: pip install {install}")
