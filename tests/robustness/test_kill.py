"""SIGKILL at random moments: no partial file under a final name, nothing lost or repeated, no leftovers."""

import random
from collections import Counter

import pytest

from robustness.scenarios import summary

KILLS = {
    "generate": 50,
    "generate, empty cache": 20,
    "batch": 50,
    "voices add": 30,
    "convert": 15,
    "convert --overwrite": 5,
}
"""Command → how often `make torture` kills it."""
LONGEST_CHAIN = 4
"""Kills of one command before it may run to its end."""
MIN_LEFT = 0.2
"""Minimum part of a run in which a kill falls, even if little is left: started work starts again."""


def killed(whole, folder, kills, seed):
    """Kill a command that many times; sometimes let it finish in between."""
    chance = random.Random(f"{seed} {whole.name}")
    outcomes = Counter()
    wrong = []
    while outcomes["killed"] < kills:
        ways = moments(chance, min(chance.randint(1, LONGEST_CHAIN), kills - outcomes["killed"]), whole)
        wrong += killed_in(ways, whole, folder, outcomes)
    summary(whole.name, outcomes, wrong)


def moments(chance, count, whole):
    """When a command is killed that many times in turn.

    By the clock as often as at a call to the system: it also dies between a file and its record. As what is finished
    is not made again, each kill is within the part of the run that those before left: later, most runs would end first.
    """
    ways = []
    left = 1.0
    for _ in range(count):
        part = chance.random()
        by_clock = {"kill_after": part * left * whole.seconds}
        ways.append(chance.choice([by_clock, {"call": int(part * left * len(whole.calls))}]))
        if whole.scenario.finished:
            left = max(MIN_LEFT, left * (1 - part))
    return ways


def killed_in(ways, whole, folder, outcomes):
    """Failures after a command was killed in each of these ways in turn and then finished."""
    wrong = []
    whole.prepare(folder)
    pieces = {}
    for way in [*ways, None]:
        ended = whole.run(folder, **(way or {}))
        if way is None:
            found = whole.failed(ended, folder) + whole.differences(folder)
            outcomes["completed"] += not found
        else:
            outcomes["killed" if ended.code == -9 else "ended before"] += 1
            found = whole.half_files(folder) + (whole.failed(ended, folder) if ended.code != -9 else [])
        now = whole.pieces(folder)
        if now or not whole.scenario.gathers:
            found += [f"lost: {name}" for name in pieces.keys() - now.keys()]
        found += [f"made twice: {name}" for name in pieces.keys() & now.keys() if pieces[name] != now[name]]
        pieces = now
        wrong += [f"{ways}, {way or 'to the end'}: {problem}" for problem in found]
    return wrong


@pytest.mark.parametrize(("name", "kills"), [("generate", 3), ("batch", 2), ("voices add", 2)])
def test_killed_command_loses_nothing_and_leaves_nothing(whole, tmp_path, torture_seed, name, kills):
    killed(whole(name), tmp_path / "run", kills, torture_seed)


@pytest.mark.torture
@pytest.mark.parametrize("name", KILLS)
def test_two_hundred_kills(whole, tmp_path, torture_seed, share, name):
    killed(whole(name), tmp_path / "run", share(KILLS[name]), torture_seed)
