"""Commands that are killed, or whose system calls fail: the old state, one line, nothing lost and no leftovers."""

import errno
import random
import re
from collections import Counter, defaultdict

import pytest

from robustness.folder_contents import files
from robustness.scenarios import BEGUN, lines_of, summary

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EINTR)
EVERY_CALL = ("generate", "generate, empty cache", "batch", "voices add")
"""Commands of which every system call fails once."""
CONVERSIONS = (BEGUN, "convert", "convert --overwrite")
"""Commands with many calls, of which one of each kind fails in each role of a folder. The others leave out the roles of
the first one, except those of folders that are there before.
"""
# What no two conversions have in common, and which step model or precision a file is of.
_NAMES = re.compile(
    r"tmp\w+|(\.unfinished-)?\w+\.mlpackage|[0-9A-Fa-f]{8}-[0-9A-Fa-f-]{27}|(?<=/)(fp16|fp32|int8)(?=/|$)"
)
Role = tuple[str, str]
"""The kind of a call, and what the folder of its file is for."""


def by_role(calls):
    """The numbers of the calls of each role. The folders of all packages are one; a file at the top is itself one."""
    groups = defaultdict(list)
    for number, (kind, path) in enumerate(calls):
        groups[kind, _NAMES.sub("*", path.rpartition("/")[0] or path)].append(number)
    return groups


def chosen(calls, chance, left_out=()):
    """The calls by their number, each with an error: first one of each kind in each role, then every other once."""
    groups = [numbers for role, numbers in by_role(calls).items() if role not in left_out]
    first = [chance.choice(numbers) for numbers in groups]
    others = sorted({number for numbers in groups for number in numbers} - set(first))
    chance.shuffle(first)
    chance.shuffle(others)
    return [(number, chance.choice(ERRORS)) for number in first + others]


def problems(ended, folder, whole):
    """What is wrong with a command's outcome and leftovers."""
    if ended.hung:
        return ["hung"]
    wrong = whole.half_files(folder) + whole.leftovers(folder)
    if ended.code == 0:
        return wrong + whole.missing(folder)
    if ended.code not in whole.scenario.codes:
        wrong.append(f"exit code {ended.code}")
    # A batch reports a line at once, and again at its end.
    said = {line.removeprefix("failed: ") for line in lines_of(ended)}
    if len(said) != 1 or not min(said).startswith(("error: ", "line ")):
        wrong.append(f"not one line: {sorted(said)[-4:]}")
    return wrong


def disturb(whole, folder, faults):
    """Run a command once for each call that fails; and again from each state that this leaves."""
    gone_on_from = [whole.before]
    outcomes = Counter()
    wrong = []
    for number, error in faults:
        whole.prepare(folder)
        ended = whole.run(folder, call=number, error=error)
        found = problems(ended, folder, whole)
        outcomes["wrong" if found else "went on" if ended.code == 0 else "one line"] += 1
        left = files(folder)
        if left not in gone_on_from and (ended.code or whole.differences(folder)):
            again = whole.run(folder)
            then = whole.differences(folder) + whole.failed(again, folder)
            found += [f"then {problem}" for problem in then]
            gone_on_from += [] if found else [left]
        wrong += [f"{_named(whole.calls, number, error)}: {problem}" for problem in found]
    summary(whole.name, outcomes, wrong)


def _named(calls, number, error):
    kind, path = calls[number]
    return f"{kind} {path} ({errno.errorcode[error]}, call {number})"


SOME = [("generate", 6), ("generate, empty cache", 5), ("voices add", 10)]
EVERY = [pytest.param(name, None, marks=pytest.mark.torture) for name in EVERY_CALL]


@pytest.mark.parametrize(("name", "count"), [*SOME, *EVERY])
def test_failed_system_call_is_one_line_and_preserves_the_state(
    whole, tmp_path, torture_seed, share, name, count
):
    faults = chosen(whole(name).calls, random.Random(f"{torture_seed} {name}"))
    disturb(whole(name), tmp_path / "run", faults[: count or share(len(faults))])


@pytest.mark.torture
@pytest.mark.parametrize("name", CONVERSIONS)
def test_each_system_call_fails_once_per_folder_role(whole, tmp_path, torture_seed, share, name):
    command, left_out = whole(name), set[Role]()
    if name != BEGUN:
        roles = by_role(whole(BEGUN).calls)
        left_out = {role for role in roles if role[1] not in command.scenario.there}
    faults = chosen(command.calls, random.Random(f"{torture_seed} {name}"), left_out)
    count = share(len(by_role(command.calls).keys() - left_out))
    disturb(command, tmp_path / "run", faults[:count])


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


SOME_KILLS = [("generate", 3), ("batch", 2), ("voices add", 2)]
MANY_KILLS = [pytest.param(name, None, marks=pytest.mark.torture) for name in KILLS]


@pytest.mark.parametrize(("name", "kills"), [*SOME_KILLS, *MANY_KILLS])
def test_killed_command_loses_nothing_and_leaves_nothing(whole, tmp_path, torture_seed, share, name, kills):
    killed(whole(name), tmp_path / "run", kills or share(KILLS[name]), torture_seed)
