"""SIGKILL at random moments: no half file under a final name, nothing lost or done twice, nothing left behind."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robustness.scenarios import Scenario
from robustness.totals import Totals

LONGEST_CHAIN = 4
"""Kills of one command before it may run to its end."""


def killed(whole: Any, folder: Path, kills: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Outcomes, and what went wrong, of that many kills; after some of them the command runs to its end."""
    scenario: Scenario = whole.scenario
    chance = random.Random(f"{seed} {scenario.name}")
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    while outcomes["killed"] < kills:
        shutil.rmtree(folder, ignore_errors=True)
        scenario.prepare(folder, whole.materials)
        pieces: dict[str, int] = {}
        for _ in range(chance.randint(1, LONGEST_CHAIN)):
            # By the clock as often as at a call to the system: it also dies between a file and its record.
            what = chance.choice(
                [
                    {"kill_after": chance.uniform(0, whole.seconds)},
                    {"call": chance.randrange(len(whole.calls))},
                ]
            )
            ended = scenario.run(whole.children, folder, whole.materials, **what)
            outcomes["killed" if ended.code == -9 else "ended before"] += 1
            found = scenario.half_files(folder, whole.files, whole.before)
            if ended.code not in (-9, 0):
                found.append(f"exit code {ended.code}: {ended.err.strip()}")
            found += lost(scenario, folder, pieces)
            wrong += [f"{what}: {problem}" for problem in found]
            pieces = scenario.pieces(folder)
            if ended.code == 0:
                break
        ended = scenario.run(whole.children, folder, whole.materials)
        found = [f"exit code {ended.code}: {ended.err.strip()}"] if ended.code else []
        found += scenario.differences(folder, whole.files)
        found += lost(scenario, folder, pieces)
        outcomes["completed"] += not ended.code
        wrong += [f"after {what}: {problem}" for problem in found]
    return outcomes, wrong


def lost(scenario: Scenario, folder: Path, before: dict[str, int]) -> list[str]:
    """The finished parts that are gone, or were made again."""
    now = scenario.pieces(folder)
    gone = [] if scenario.gathers and not now else [f"lost: {name}" for name in before.keys() - now.keys()]
    return gone + [f"made twice: {name}" for name in before.keys() & now.keys() if before[name] != now[name]]


@pytest.mark.parametrize(("name", "kills"), [("generate", 3), ("batch", 3), ("voices add", 2)])
def test_a_killed_command_loses_nothing_and_leaves_nothing(
    whole: Callable[[str], Any], tmp_path: Path, totals: Totals, torture_seed: int, name: str, kills: int
) -> None:
    outcomes, wrong = killed(whole(name), tmp_path / "run", kills, torture_seed)

    totals.record("Kill", name, outcomes)
    assert not wrong, "\n".join(wrong)


KILLS = {
    "generate": 50,
    "generate, empty cache": 20,
    "batch": 50,
    "voices add": 30,
    "convert": 30,
    "default bundle": 20,
}


@pytest.mark.torture
@pytest.mark.parametrize("name", KILLS)
def test_two_hundred_kills(
    whole: Callable[[str], Any], tmp_path: Path, totals: Totals, torture_seed: int, name: str
) -> None:
    outcomes, wrong = killed(whole(name), tmp_path / "run", KILLS[name], torture_seed)

    totals.record("Kill", name, outcomes)
    assert not wrong, "\n".join(wrong)
