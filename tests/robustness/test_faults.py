"""One call to the system that fails: one line, the old state, and nothing left behind."""

from __future__ import annotations

import errno
import functools
import random
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from robustness.cases import EACH_CALL, EACH_ROLE, EVERY_CALL, PARTS, PARTS_OF_EACH_CALL
from robustness.children import Ended
from robustness.folder_contents import files
from robustness.scenarios import Judge, Scenario, lines_of

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EINTR)


# What no two conversions have in common, and which step model or precision a file is of.
_NAMES = re.compile(
    r"tmp\w+|(\.unfinished-)?\w+\.mlpackage|[0-9A-Fa-f]{8}-[0-9A-Fa-f-]{27}|(?<=/)(fp16|fp32|int8)(?=/|$)|job_\w{24}"
)


def role(path: str) -> str:
    """What the folder of a file is for: the folders of all packages are one. What lies at the top is itself one."""
    return _NAMES.sub("*", path.rpartition("/")[0] or path)


Role = tuple[str, str]
"""The kind of a call, and the role of the folder of its file."""


def by_role(calls: list[tuple[str, str]]) -> dict[Role, list[int]]:
    """The numbers of the calls of each role."""
    groups: dict[Role, list[int]] = defaultdict(list)
    for number, (kind, path) in enumerate(calls):
        groups[kind, role(path)].append(number)
    return groups


def of_others(whole: Callable[[str], Any], name: str, others: Collection[str]) -> set[Role]:
    """The roles of other commands, without those of folders that are there before this one alone."""
    there = whole(name).scenario.there if others else {}
    return {found for other in others for found in by_role(whole(other).calls) if found[1] not in there}


def chosen(
    calls: list[tuple[str, str]], count: int, chance: random.Random, left_out: Collection[Role] = ()
) -> list[tuple[int, int]]:
    """`count` calls by their number, each with an error: first one of each kind in each role, then every other once.

    left_out: roles of which no call is chosen.
    """
    groups = {found: numbers for found, numbers in by_role(calls).items() if found not in left_out}
    first = [chance.choice(numbers) for numbers in groups.values()]
    others = sorted({number for numbers in groups.values() for number in numbers} - set(first))
    chance.shuffle(first)
    chance.shuffle(others)
    return [(number, chance.choice(ERRORS)) for number in (first + others)[:count]]


def problems(scenario: Scenario, ended: Ended, folder: Path, whole: Any) -> list[str]:
    """What is wrong with how a command ended, and with what it left."""
    if ended.hung:
        return ["hung"]
    # A batch reports a line at once, and again at its end.
    said = {line.removeprefix("failed: ") for line in lines_of(ended)}
    if ended.code == 0:
        wrong = scenario.missing(folder, whole.files) + scenario.half_files(folder, whole.files, whole.before)
        # What could not be removed just then goes with the next run.
        return wrong + scenario.leftovers(folder, whole.files, whole.before)
    wrong = []
    if ended.code not in scenario.codes:
        wrong.append(f"exit code {ended.code}")
    if len(said) != 1 or not min(said).startswith(("error: ", "line ")):
        wrong.append(f"not one line: {sorted(said)[-4:]}")
    wrong += scenario.half_files(folder, whole.files, whole.before)
    return wrong + scenario.leftovers(folder, whole.files, whole.before)


def disturbed(
    whole: Any,
    folder: Path,
    count: int,
    seed: int,
    *,
    left_out: Collection[Role] = (),
    part: tuple[int, int] = (0, 1),
) -> tuple[Counter[str], list[str]]:
    """Outcomes, and what went wrong, of that many runs in each of which one call fails.

    The command runs again from each state that such a run leaves; once, if several leave the same files.
    left_out: as of `chosen`. part: which of how many parts of these runs are to be run.
    """
    scenario: Scenario = whole.scenario
    gone_on_from = [whole.before]
    chance = random.Random(f"{seed} {scenario.name}")
    outcomes: Counter[str] = Counter()
    wrong = []
    for number, error in chosen(whole.calls, count, chance, left_out)[part[0] :: part[1]]:
        shutil.rmtree(folder, ignore_errors=True)
        scenario.prepare(folder, whole.materials)
        ended = scenario.run(whole.children, folder, whole.materials, call=number, error=error)
        found = problems(scenario, ended, folder, whole)
        outcomes["wrong" if found else "went on" if ended.code == 0 else "one line"] += 1
        left = files(folder)
        if left not in gone_on_from and (ended.code or scenario.differences(folder, whole.files)):
            again = scenario.run(whole.children, folder, whole.materials)
            found += [f"then {problem}" for problem in scenario.differences(folder, whole.files)]
            found += [f"then {problem}" for problem in scenario.failed(again, folder, whole.files)]
            gone_on_from += [] if found else [left]
        kind, path = whole.calls[number]
        wrong += [f"{kind} {path} ({errno.errorcode[error]}, call {number}): {problem}" for problem in found]
    return outcomes, wrong


@pytest.mark.parametrize(
    ("name", "count"), [("generate", 6), ("generate, empty cache", 5), ("voices add", 10)]
)
def test_a_call_that_fails_is_one_line_and_the_old_state(judged: Judge, name: str, count: int) -> None:
    judged("Faults", disturbed, name, count)


@pytest.mark.torture
@pytest.mark.parametrize("name", EVERY_CALL)
def test_every_call_fails_once(
    whole: Callable[[str], Any], judged: Judge, share: Callable[[int], int], name: str
) -> None:
    judged("Faults", disturbed, name, share(len(whole(name).calls)))


@pytest.mark.torture
@pytest.mark.parametrize(
    ("name", "part"), [(name, part) for name in EACH_ROLE for part in range(PARTS[name])]
)
def test_one_call_of_each_kind_fails_in_each_role_of_a_folder(
    whole: Callable[[str], Any], judged: Judge, share: Callable[[int], int], name: str, part: int
) -> None:
    left_out = of_others(whole, name, EACH_ROLE[name])
    roles = by_role(whole(name).calls).keys() - left_out
    disturb = functools.partial(disturbed, left_out=left_out, part=(part, PARTS[name]))
    judged("Faults", disturb, name, share(len(roles)))


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "part"), [(name, part) for name in EACH_CALL for part in range(PARTS_OF_EACH_CALL)]
)
def test_every_call_of_a_conversion_fails_once(
    whole: Callable[[str], Any], judged: Judge, share: Callable[[int], int], name: str, part: int
) -> None:
    left_out = of_others(whole, name, EACH_CALL[name])
    count = sum(len(calls) for found, calls in by_role(whole(name).calls).items() if found not in left_out)
    disturb = functools.partial(disturbed, left_out=left_out, part=(part, PARTS_OF_EACH_CALL))
    judged("Faults", disturb, name, share(count))
