"""Continuous integration runs what exists, and says what it did not cover."""

from __future__ import annotations

import itertools
import re
import shlex

import yaml

from documents import REPOSITORY, parsed
from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS

WORKFLOW = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


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


def test_every_line_is_one_that_is_checked_here() -> None:
    shell = {"commands=.venv/bin/voxcpm-coreml", "for", "done", "echo", "code=0", "exit", "command", "sudo"}
    known = {*PROGRAMS, "make", "python", "uv", ".venv/bin/python", "swiftc", *shell}
    assert {words[0] for words in lines()} <= known


def test_every_command_of_the_program_exists() -> None:
    for words in COMMANDS:
        parsed(list(itertools.takewhile(lambda word: word not in ("|", ">", ">>"), words)))


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    called = [word for words in lines() if words[0] == "make" for word in words[1:] if "=" not in word]
    assert called
    assert set(called) <= targets


def test_every_file_that_is_run_exists() -> None:
    files = [
        word for words in lines() for word in words if word.startswith((".github/", "examples/", "tests/"))
    ]
    assert files
    assert [name for name in files if not (REPOSITORY / name).exists()] == []


def test_each_compute_unit_has_a_step_of_its_own_that_others_cannot_stop() -> None:
    units = [step for step in STEPS if "COREML_COMPUTE_UNITS" in step.get("env", {})]
    assert sorted(step["env"]["COREML_COMPUTE_UNITS"] for step in units) == sorted(COMPUTE_UNITS)
    for step in units:
        assert step["if"] == "${{ !cancelled() }}"
        # A step that hangs ends itself, and one that fails fails the job.
        assert step["timeout-minutes"] <= 10
        assert "continue-on-error" not in step
