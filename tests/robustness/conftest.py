from __future__ import annotations

import functools
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
from robustness.damage import copy_of_one_precision
from robustness.folder_contents import calls, files
from robustness.scenarios import SCENARIOS, Disturb, Judge, Materials, Scenario, begin
from shared_bundles import made_once

SEED = int(os.environ.get("TORTURE_SEED", "17"))
TOTALS = Path(__file__).parents[2] / "build" / "torture.json"
SPEAKING = (
    "voxcpm_runtime.voxcpm",
    "voxcpm_runtime.commands.batch",
    "voxcpm_runtime.commands.generate",
    "voxcpm_runtime.commands.voices",
    "voxcpm_runtime.backends.portable.step_model",
    "onnx",
)
# Commands import some of these only when they need them: here they are imported once, not by each child.
CONVERTING = (
    *SPEAKING,
    "coremltools",
    "voxcpm_conversion.cli",
    "voxcpm_conversion.convert",
    "voxcpm_conversion.core_ml.packages",
)


# Of `make torture`: rows of changed inputs are many and short, so they come last, for whichever worker is free.
LONG = (
    "test_damage_to_what_a_voice",
    "test_two_hundred_kills",
    "test_one_call_of_each_kind",
    "test_sixteen_threads",
)
SHORT = ("test_inputs_that_reach_new_code", "test_changed_inputs")
WORKERS = 2


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long tests first. Each worker begins with half of them, and the first to end takes from the other."""

    def rank(item: pytest.Item) -> int:
        for number, name in enumerate(LONG, -len(LONG)):
            if item.name.startswith(name):
                return number
        return int(item.name.startswith(SHORT))

    torture = sorted((item for item in items if item.get_closest_marker("torture")), key=rank)
    others = [item for item in items if not item.get_closest_marker("torture")]
    items[:] = others + [item for worker in range(WORKERS) for item in torture[worker::WORKERS]]


FOUND: list[dict[str, Any]] = []
FAILED: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """On the process that reports: workers send their counts with their tests. A run that is interrupted keeps them."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    if report.failed:
        FAILED[f"{report.nodeid}, {report.when}"] = report.longreprtext
    rows = totals_.rows(report.user_properties) if report.when == "call" else []
    FOUND.extend(rows)
    if rows or (report.failed and FOUND):
        _write_totals()


def _write_totals() -> None:
    totals_.write(
        TOTALS,
        totals_.merged(FOUND),
        FAILED,
        seed=SEED,
        ended=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M"),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
    )


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not FOUND:
        return
    terminalreporter.section(f"totals, seed {SEED}, also in {TOTALS.relative_to(config.rootpath)}")
    for line in totals_.table(totals_.merged(FOUND)):
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
    worker_id: str,
) -> Materials:
    """What the commands read, made once for all workers."""

    def make(folder: Path) -> None:
        cache = folder / "cache"
        cache.mkdir(parents=True)
        given = ("generate", speaking_bundle, "--precision", "int8", "--text", "Good morning.", "--seed", 1)
        ended = speaking_children.run(
            Case(
                (*map(str, given), "-o", str(folder / "me.wav")),
                folder=folder,
                environment={"VOXCPM_COREML_CACHE": str(cache)},
            )
        )
        assert ended.code == 0, ended.err
        copy_of_one_precision(speaking_bundle, folder / "earlier")
        _min_checkpoint(folder / "checkpoint", tiny_checkpoint)

    folder = made_once(tmp_path_factory, worker_id, "materials", make)
    return Materials(
        bundle=speaking_bundle,
        cache=folder / "cache",
        checkpoint=folder / "checkpoint",
        recording=folder / "me.wav",
        earlier=folder / "earlier",
        begun=folder.with_name("begun"),
    )


def _min_checkpoint(folder: Path, tiny: Path) -> Path:
    """A checkpoint of one layer each, with the tokenizer of another one: a third of the work to convert.

    It has as many positions as the built-in voice is converted for.
    """
    from voxcpm_conversion.synthetic import write_synthetic_checkpoint
    from voxcpm_conversion.synthetic_presets import presets

    config = presets()["tiny"]
    language_model, vae = config["lm_config"], config["audio_vae_config"]
    language_model["max_position_embeddings"] = config["max_length"] = 2048
    language_model["num_hidden_layers"] = 1
    config["encoder_config"]["num_layers"] = config["dit_config"]["num_layers"] = 1
    vae["encoder_rates"], vae["decoder_rates"] = [2, 7], [7, 2]
    return write_synthetic_checkpoint(folder, config, seed=0, dtype="float32", tokenizer=tiny)


class Whole:
    """A scenario's run that nothing disturbed."""

    def __init__(self, scenario: Scenario, children: Children, materials: Materials, folder: Path) -> None:
        """folder: what `make` filled."""
        self.scenario, self.children, self.materials = scenario, children, materials
        found = json.loads((folder / "whole.json").read_text(encoding="utf-8"))
        self.before: dict[str, str] = found["before"]
        self.files: dict[str, str] = found["files"]
        self.seconds: float = found["seconds"]
        self.calls: list[tuple[str, str]] = [(kind, path) for kind, path in found["calls"]]

    @staticmethod
    def make(scenario: Scenario, children: Children, materials: Materials, folder: Path) -> None:
        """Run it, and write what all workers need of it."""
        run, log = folder / "run", folder / "calls.txt"
        scenario.prepare(run, materials)
        before, began = files(run), time.monotonic()
        ended = scenario.run(children, run, materials, log=log)
        found = {"before": before, "seconds": time.monotonic() - began}
        assert ended.code == 0, ended.err
        found |= {"files": files(run), "calls": calls(log, run)}
        (folder / "whole.json").write_text(json.dumps(found), encoding="utf-8")


@pytest.fixture(scope="session")
def whole(
    request: pytest.FixtureRequest,
    materials: Materials,
    tmp_path_factory: pytest.TempPathFactory,
    worker_id: str,
) -> Callable[[str], Whole]:
    """whole(name): the run of a scenario that nothing disturbed, made once; a conversion's, once for each worker."""

    def of(name: str) -> Whole:
        scenario = SCENARIOS[name]
        if ".bundle.partial" in scenario.there:
            made_once(tmp_path_factory, worker_id, materials.begun.name, begun)
        kind = "converting_children" if scenario.converts else "speaking_children"
        children = request.getfixturevalue(kind)
        make = functools.partial(Whole.make, scenario, children, materials)
        # Two processes do not write the fields of a package's program in the same order.
        once = f"whole {name} {worker_id}" if scenario.converts else f"whole {name}"
        return Whole(scenario, children, materials, made_once(tmp_path_factory, worker_id, once, make))

    def begun(folder: Path) -> None:
        begin(of("convert"), folder)

    return of


@pytest.fixture
def judged(whole: Callable[[str], Whole], tmp_path: Path, totals: totals_.Totals, torture_seed: int) -> Judge:
    """judged(section, disturb, name, count): a command is disturbed, its row recorded; fails if something is wrong."""

    def judge(section: str, disturb: Disturb, name: str, count: int) -> None:
        outcomes, wrong = disturb(whole(name), tmp_path / "run", count, torture_seed)
        totals.record(section, name, outcomes)
        assert not wrong, "\n".join(wrong)

    return judge
