from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from robustness import totals as totals_
from robustness.children import Case, Children
from robustness.scenarios import SCENARIOS, Disturb, Judge, Materials, Scenario, begin, calls, files

SEED = int(os.environ.get("TORTURE_SEED", "17"))
SPEAKING = (
    "voxcpm_runtime.voxcpm",
    "voxcpm_runtime.commands.batch",
    "voxcpm_runtime.commands.generate",
    "voxcpm_runtime.commands.voices",
    "voxcpm_runtime.backends.portable.step_model",
)
CONVERTING = (
    *SPEAKING,
    "voxcpm_conversion.cli",
    "voxcpm_conversion.convert",
    "voxcpm_conversion.core_ml.packages",
)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """On the process that reports: workers send their counts with their tests."""
    if report.when == "call":
        FOUND.extend(totals_.rows(report.user_properties))


FOUND: list[dict[str, Any]] = []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not FOUND:
        return
    path = config.rootpath / "build" / "torture.json"
    rows = totals_.merged(FOUND)
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")
    totals_.write(
        path,
        rows,
        seed=SEED,
        ended=now,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
    )
    terminalreporter.section(f"totals, seed {SEED}, also in {path.relative_to(config.rootpath)}")
    for line in totals_.table(rows):
        terminalreporter.write_line(line)


@pytest.fixture
def totals(request: pytest.FixtureRequest) -> totals_.Totals:
    """totals.record(section, row, outcomes, **figures): a row of the table that the run ends with."""
    return totals_.Totals(request)


@pytest.fixture(scope="session")
def torture_seed() -> int:
    """The seed of all that is random; `TORTURE_SEED` sets another one."""
    return SEED


@pytest.fixture(scope="session")
def share() -> Callable[[int], int]:
    """share(cases): how many of them are to run; `TORTURE_SHARE`, from 0 to 1, asks for fewer."""
    part = float(os.environ.get("TORTURE_SHARE", "1"))
    return lambda cases: max(1, round(part * cases))


@pytest.fixture(scope="session")
def system_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that counts and disturbs calls to the system; skips off Linux, and without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if platform.system() != "Linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("system-calls") / "system_calls.so"
    source = Path(__file__).with_name("system_calls.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture(scope="session")
def speaking_children(system_calls: Path) -> Iterator[Children]:
    """What runs commands that speak."""
    children = Children(system_calls, modules=SPEAKING)
    yield children
    children.close()


@pytest.fixture(scope="session")
def converting_children(system_calls: Path) -> Iterator[Children]:
    """What runs commands that convert."""
    children = Children(system_calls, modules=CONVERTING)
    yield children
    children.close()


@pytest.fixture(scope="session")
def materials(
    speaking_bundle: Path,
    tiny_checkpoint: Path,
    speaking_children: Children,
    tmp_path_factory: pytest.TempPathFactory,
) -> Materials:
    """What the commands read."""
    folder = tmp_path_factory.mktemp("materials")
    checkpoint = Path(shutil.copytree(tiny_checkpoint, folder / "checkpoint"))
    config = json.loads((checkpoint / "config.json").read_text())
    config["lm_config"]["max_position_embeddings"] = config["max_length"] = 2048
    (checkpoint / "config.json").write_text(json.dumps(config))
    cache, recording = folder / "cache", folder / "me.wav"
    cache.mkdir()
    given = (
        "generate",
        speaking_bundle,
        "--precision",
        "int8",
        "--text",
        "Good morning.",
        "--seed",
        1,
        "-o",
        recording,
    )
    ended = speaking_children.run(
        Case(tuple(map(str, given)), folder=folder, environment={"VOXCPM_COREML_CACHE": str(cache)})
    )
    assert ended.code == 0, ended.err
    return Materials(
        bundle=speaking_bundle,
        cache=cache,
        checkpoint=checkpoint,
        recording=recording,
        begun=folder / "begun",
    )


class Whole:
    """A scenario's run that nothing disturbed."""

    def __init__(self, scenario: Scenario, children: Children, materials: Materials, folder: Path) -> None:
        self.scenario, self.children, self.materials = scenario, children, materials
        run, log = folder / "run", folder / "calls.txt"
        scenario.prepare(run, materials)
        self.before = files(run)
        began = time.monotonic()
        ended = scenario.run(children, run, materials, log=log)
        self.seconds = time.monotonic() - began
        assert ended.code == 0, ended.err
        self.files = files(run)
        self.calls = calls(log, run)


@pytest.fixture(scope="session")
def whole(
    request: pytest.FixtureRequest, materials: Materials, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Whole]:
    """whole(name): the run of a scenario that nothing disturbed, made once."""
    made: dict[str, Whole] = {}

    def of(name: str) -> Whole:
        if name not in made:
            scenario = SCENARIOS[name]
            if "begun" in scenario.there.values() and not materials.begun.exists():
                begin(of("convert"), tmp_path_factory.mktemp("begun") / "run").rename(materials.begun)
            kind = "converting_children" if scenario.converts else "speaking_children"
            children = request.getfixturevalue(kind)
            made[name] = Whole(scenario, children, materials, tmp_path_factory.mktemp("whole"))
        return made[name]

    return of


@pytest.fixture
def judged(whole: Callable[[str], Whole], tmp_path: Path, totals: totals_.Totals, torture_seed: int) -> Judge:
    """judged(section, disturb, name, count): a command is disturbed, its row recorded; fails if something is wrong."""

    def judge(section: str, disturb: Disturb, name: str, count: int) -> None:
        outcomes, wrong = disturb(whole(name), tmp_path / "run", count, torture_seed)
        totals.record(section, name, outcomes)
        assert not wrong, "\n".join(wrong)

    return judge
