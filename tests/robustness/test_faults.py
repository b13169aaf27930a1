"""A failing system call gives one line, the old state, and no leftovers."""

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


@pytest.mark.parametrize(
    ("name", "count"), [("generate", 6), ("generate, empty cache", 5), ("voices add", 10)]
)
def test_failed_system_call_is_one_line_and_preserves_the_state(whole, tmp_path, torture_seed, name, count):
    faults = chosen(whole(name).calls, random.Random(f"{torture_seed} {name}"))
    disturb(whole(name), tmp_path / "run", faults[:count])


@pytest.mark.torture
@pytest.mark.parametrize("name", EVERY_CALL)
def test_every_call_fails_once(whole, tmp_path, torture_seed, share, name):
    faults = chosen(whole(name).calls, random.Random(f"{torture_seed} {name}"))
    disturb(whole(name), tmp_path / "run", faults[: share(len(faults))])


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
