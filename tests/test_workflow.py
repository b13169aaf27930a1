"""Continuous integration runs what exists, and says what it did not cover."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import plistlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
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
coverage = runpy.run_path(str(REPOSITORY / SCRIPT))["coverage"]


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
    shell |= {"hashed=$RUNNER_TEMP/hashed/bin/python"}
    known = {*PROGRAMS, "make", "python", "$hashed", ".venv/bin/python", "swiftc", *shell}
    assert {words[0] for words in lines()} <= known


def test_packages_are_installed_by_their_digests_as_the_page_says() -> None:
    page = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8").partition("## Install by digests")[2]
    said = [
        shlex.split(line) for line in page.partition("\n## ")[0].splitlines() if line.startswith("    pip ")
    ]

    assert len(said) == 2
    assert [words[2:] for words in lines() if words[0] == "$hashed"] == [*said, ["pip", "check"]]


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


@pytest.mark.parametrize(("ci", "code", "told"), [("true", 1, "1 error"), ("", 0, "1 skipped")])
def test_a_group_without_what_it_needs_fails_in_continuous_integration(
    ci: str, code: int, told: str, tmp_path: Path
) -> None:
    """pytest itself, on a test of Ray's without Ray."""
    arguments = ["-m", "ray", "-n", "0", "--basetemp", str(tmp_path / "runs"), "-k", "ends_every_process"]
    program = (
        "import sys, pytest; sys.modules['ray'] = None; "
        f"sys.exit(pytest.main({['tests/server/cluster/test_batch_on_ray.py', *arguments]!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, told in done.stdout) == (code, True), done.stdout + done.stderr
    assert not ci or "needs the extra ray" in done.stdout


def test_on_a_mac_what_is_not_of_core_ml_runs_on_the_portable_executor(tmp_path: Path) -> None:
    """A file of tests that speak, as pytest itself runs it on macOS 15.5."""
    version = tmp_path / "SystemVersion.plist"
    version.write_bytes(plistlib.dumps({"ProductVersion": "15.5", "ProductBuildVersion": "24F74"}))
    runs = str(tmp_path / "runs")
    tests = [
        "tests/runtime/voices/test_built_in_voices.py",
        "-n",
        "0",
        "-k",
        "provenance",
        "--basetemp",
        runs,
    ]
    program = (
        "import sys, pytest; from pathlib import Path; from voxcpm_constants import macos; "
        f"macos.SYSTEM_VERSION_FILE = Path({str(version)!r}); sys.exit(pytest.main({tests!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("ci", ["true", ""])
def test_clients_that_cannot_be_installed_fail_in_continuous_integration(ci: str, tmp_path: Path) -> None:
    """The target itself, without packages. Its environment is another, and .venv is taken as it is."""
    places = [f"CLIENTS={tmp_path / 'clients'}", f"PYTHON={sys.executable}"]
    done = subprocess.run(
        ["make", "-o", ".venv/.installed", "test-clients", *places],  # noqa: S607 - the one of the path
        cwd=REPOSITORY,
        env=os.environ | {"CI": ci, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == (ci == ""), done.stdout + done.stderr
    assert "1 skipped: the tests with Pipecat and LiveKit" in done.stdout


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


def report(folder: Path, unit: str, *cases: str) -> None:
    body = "".join(f'<testcase name="t{i}">{case}</testcase>' for i, case in enumerate(cases))
    (folder / f"coreml-{unit}.xml").write_text(f"<testsuites><testsuite>{body}</testsuite></testsuites>")


def test_units_that_were_skipped_are_named_as_not_covered(tmp_path: Path) -> None:
    skipped = '<skipped message="no Neural Engine here" />'
    report(tmp_path, "cpu", "", "", "<failure/>")
    report(tmp_path, "cpu_and_ne", skipped, skipped)

    found = coverage(tmp_path, ["cpu", "cpu_and_ne", "all"])

    assert "| `cpu` | 2 | 1 | 0 |" in found
    assert "| `cpu_and_ne` | 0 | 0 | 2 |" in found
    assert "**Not covered: `cpu_and_ne`** (no Neural Engine here)." in found
    assert "**Not covered: `all`** (no report, the run ended early)." in found
    assert "`cpu`** (" not in found


def test_a_run_that_covered_everything_says_so(tmp_path: Path) -> None:
    report(tmp_path, "cpu", "")
    assert "Every unit was covered." in coverage(tmp_path, ["cpu"])


TRIED = {
    "step_model": "locdit_step",
    "unit": "cpu",
    "outcome": "correct",
    "load_seconds": 0.25,
    "call_seconds": 0.0125,
    "agreement": {"streams": {"chain": 0.9999, "first_16": 0.99871}, "chain": [1.0], "state": None},
}
REFUSED = TRIED | {
    "unit": "all",
    "outcome": "refused",
    "load_seconds": None,
    "call_seconds": None,
    "agreement": None,
}
DOCUMENT = {"trials": [TRIED, REFUSED], "chosen": {"locdit_step": "cpu"}, "advice": ["Use cpu."]}


BASH = shutil.which("bash") or ""


@pytest.mark.skipif(not BASH, reason="the step is written for bash")
@pytest.mark.parametrize(
    ("code", "printed", "expected"),
    [
        (
            1,
            json.dumps(DOCUMENT),
            [
                "| locdit_step | cpu | 0.2 | 12.5 | 0.99871 | correct * |",
                "| locdit_step | all |  |  |  | refused |",
                "- Use cpu.",
            ],
        ),
        (0, json.dumps(DOCUMENT), ["- Use cpu."]),
        (2, "", ["**No report**: the doctor ended early."]),
    ],
)
def test_the_doctors_findings_fail_its_step_after_table_and_json(
    tmp_path: Path, code: int, printed: str, expected: list[str]
) -> None:
    """The step itself, as GitHub runs it, with a doctor that prints and ends as told."""
    (step,) = (step for step in STEPS if "doctor.json" in step.get("run", ""))
    (tmp_path / ".github").symlink_to(REPOSITORY / ".github")
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (tmp_path / "printed").write_text(printed)
    (programs / "python").symlink_to(sys.executable)
    (programs / "voxcpm-coreml").write_text(f"#!/bin/sh\necho run >> runs\ncat printed\nexit {code}\n")
    (programs / "voxcpm-coreml").chmod(0o755)
    places = {"RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    done = subprocess.run([BASH, "-e", "-c", step["run"]], cwd=tmp_path, env=os.environ | places, check=False)
    assert done.returncode == code
    assert (tmp_path / "doctor.json").read_text() == printed
    assert (tmp_path / "runs").read_text() == "run\n"
    assert set(expected) <= set((tmp_path / "summary.md").read_text().splitlines())


CPU, NEURAL_ENGINE = (type(f"ML{kind}ComputeDevice", (), {}) for kind in ("CPU", "NeuralEngine"))


@pytest.mark.parametrize(
    ("unit", "devices", "runs"),
    [
        ("cpu", [CPU], True),
        ("cpu_and_gpu", [CPU], True),
        ("cpu_and_ne", [CPU], False),
        ("all", [CPU], False),
        ("cpu_and_ne", [CPU, NEURAL_ENGINE], True),
        ("all", [CPU, NEURAL_ENGINE], True),
    ],
)
def test_without_a_neural_engine_its_units_are_skipped(
    unit: str, devices: list[type], runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = SimpleNamespace(get_all_compute_devices=lambda: [device() for device in devices])
    # coremltools itself, and torch with it, would take seconds.
    for name in ("coremltools", "coremltools.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(
        sys.modules, "coremltools.models.compute_device", SimpleNamespace(MLComputeDevice=listed)
    )
    path = REPOSITORY / "tests/runtime/backends/core_ml/test_coreml.py"
    spec = importlib.util.spec_from_file_location("on_core_ml", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    skipped = pytest.raises(pytest.skip.Exception, match="no Neural Engine")
    with contextlib.nullcontext() if runs else skipped:
        module.skip_unless_covered(unit)
