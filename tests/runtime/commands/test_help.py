"""Help and usage errors: complete, plain, in any locale, and without the extra that a command needs."""

import os
import re
import subprocess
import sys

import pytest

from voxcpm_runtime.commands import cli

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
