"""Continuous integration runs what exists, and says what it did not cover."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS
from voxcpm_runtime.commands import cli

REPOSITORY = Path(__file__).resolve().parents[1]
WORKFLOW = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
SCRIPT = ".github/core_ml_coverage.py"
DOCTOR_TABLE = ".github/doctor_table.py"


def lines() -> list[list[str]]:
    """The words of each line of each step, of those that a matrix has several of each."""
    scripts = [
        step.get("run", "").replace("${{ matrix.group }}", group)
        for job in WORKFLOW["jobs"].values()
        for group in job.get("strategy", {}).get("matrix", {}).get("group", [""])
        for step in job["steps"]
    ]
    return [shlex.split(line) for line in "\n".join(scripts).splitlines() if line.strip()]


PROGRAMS = (".venv/bin/voxcpm-coreml", "$commands")
COMMANDS = [words[1:] for words in lines() if words[0] in PROGRAMS]
UNITS = [step for step in STEPS if "COREML_COMPUTE_UNITS" in step.get("env", {})]


def test_every_line_is_one_that_is_checked_here() -> None:
    shell = {"commands=.venv/bin/voxcpm-coreml", "for", "done", "echo", "code=0", "exit", "command", "sudo"}
    known = {*PROGRAMS, "make", "python", "uv", ".venv/bin/python", "swiftc", *shell}
    assert {words[0] for words in lines()} <= known


@pytest.mark.parametrize("words", COMMANDS, ids=shlex.join)
def test_every_command_of_the_program_exists(words: list[str]) -> None:
    given = list(itertools.takewhile(lambda word: word not in ("|", ">", ">>"), words))
    assert given[0] in cli.commands()
    parse(typer.main.get_command(cli.build_app(given[0])), "voxcpm-coreml", given)


def parse(command: Any, name: str, arguments: list[str], parent: Any = None) -> Any:
    """The context of a command line that is parsed and not run. Raises click's errors of usage."""
    if not hasattr(command, "resolve_command"):
        return command.make_context(name, list(arguments), parent=parent)
    context = command.context_class(command, info_name=name, parent=parent)
    found, chosen, rest = command.resolve_command(context, list(arguments))
    return parse(chosen, found, rest, context)


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    called = [word for words in lines() if words[0] == "make" for word in words[1:] if "=" not in word]
    assert called
    assert set(called) <= targets


def test_each_step_has_a_limit_and_together_they_fit_into_their_jobs() -> None:
    for name, job in WORKFLOW["jobs"].items():
        limits = [step["timeout-minutes"] for step in job["steps"] if "run" in step]
        # Some minutes for the checkout and Python.
        assert sum(limits) <= job["timeout-minutes"] - 5, name


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("ci", "system", "code"), [("", "Linux", 0), ("true", "Darwin", 0), ("true", "Linux", 2)]
)
def test_make_goes_on_without_core_ai_in_one_line(ci: str, system: str, code: int, tmp_path: Path) -> None:
    """A pip that has no package for Core AI, as on macOS 14 and 15. Linux in CI must have one."""
    python = '#!/bin/sh\ncase "$*" in *coreai*) echo no matching distribution >&2; exit 1;; esac\n'
    venv = f'case "$*" in *venv*) mkdir -p {tmp_path}/venv/bin; cp "$0" {tmp_path}/venv/bin/python;; esac\n'
    for name, text in (("python", python + venv), ("uname", f"#!/bin/sh\necho {system}\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["make", "venv", f"VENV={tmp_path}/venv", f"PYTHON={tmp_path}/python"],  # noqa: S607 - the one of the path
        cwd=REPOSITORY,
        env=os.environ | {"CI": ci, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.count("Core AI has no packages for this system or Python") == 1
    assert (tmp_path / "venv" / ".installed").exists() == (code == 0)
    assert (tmp_path / "venv" / "core-ai.log").read_text() == "no matching distribution\n"


def test_what_python_runs_exists() -> None:
    called = [words[1:] for words in lines() if words[0] == ".venv/bin/python"]
    assert {tuple(words[:2]) if words[0] == "-m" else words[0] for words in called} == {
        ("-m", "pytest"),
        SCRIPT,
        DOCTOR_TABLE,
    }
    for script in (SCRIPT, DOCTOR_TABLE):
        assert (REPOSITORY / script).is_file()
    marker = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert all(words[2:4] == ["-m", "coreml"] for words in called if words[0] == "-m")
    assert '"coreml: ' in marker


def test_what_swiftc_compiles_exists() -> None:
    (words,) = (words for words in lines() if words[0] == "swiftc")
    assert words[-2] == "-typecheck"
    assert (REPOSITORY / words[-1]).is_file()


def test_each_compute_unit_has_a_step_of_its_own_that_others_cannot_stop() -> None:
    assert {step["env"]["COREML_COMPUTE_UNITS"] for step in UNITS} == set(COMPUTE_UNITS)
    assert len(UNITS) == len(COMPUTE_UNITS)
    for step in UNITS:
        assert f"coreml-{step['env']['COREML_COMPUTE_UNITS']}.xml" in step["run"]
        assert step["if"] == "${{ !cancelled() }}"
        # A step that hangs ends itself, and one that fails fails the job.
        assert step["timeout-minutes"] <= 10
        assert "continue-on-error" not in step
    (summary,) = (step for step in STEPS if SCRIPT in step.get("run", ""))
    assert set(COMPUTE_UNITS) <= set(shlex.split(summary["run"]))
    assert "GITHUB_STEP_SUMMARY" in summary["run"]
