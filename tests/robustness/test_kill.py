"""SIGKILL at random moments: no half file under a final name, nothing lost or done twice, nothing left behind."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from robustness.cases import JOBS, KILLS
from robustness.folder_contents import files
from robustness.scenarios import Judge, Scenario
from robustness.servers import LONGEST_WAIT, ended, served
from robustness.totals import Totals
from voxcpm_server.jobs.store import MAX_STARTS

LONGEST_CHAIN = 4
"""Kills of one command before it may run to its end."""
MIN_LEFT = 0.2
"""Part of a run in which a kill falls, however little is to be done: whatever was begun is begun again."""
KILLS_OF_A_JOB = 5


def killed(whole: Any, folder: Path, kills: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Outcomes, and what went wrong, of that many kills; after some of them the command runs to its end."""
    chance = random.Random(f"{seed} {whole.scenario.name}")
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    while outcomes["killed"] < kills:
        ways = moments(chance, min(chance.randint(1, LONGEST_CHAIN), kills - outcomes["killed"]), whole)
        wrong += killed_in(ways, whole, folder, outcomes)
    return outcomes, wrong


def moments(chance: random.Random, count: int, whole: Any) -> list[dict[str, Any]]:
    """When a command is killed that many times in turn: what a `Case` is given.

    By the clock as often as at a call to the system: it also dies between a file and its record. As what is finished
    is not made again, each kill is within the part of the run that those before left: later, most runs would end first.
    """
    ways: list[dict[str, Any]] = []
    left = 1.0
    for _ in range(count):
        part = chance.random()
        by_clock = {"kill_after": part * left * whole.seconds}
        ways.append(chance.choice([by_clock, {"call": int(part * left * len(whole.calls))}]))
        if whole.scenario.finished:
            left = max(MIN_LEFT, left * (1 - part))
    return ways


def killed_in(ways: list[dict[str, Any]], whole: Any, folder: Path, outcomes: Counter[str]) -> list[str]:
    """What went wrong when a command was killed in each of these ways in turn, and then ran to its end."""
    scenario: Scenario = whole.scenario
    wrong: list[str] = []
    shutil.rmtree(folder, ignore_errors=True)
    scenario.prepare(folder, whole.materials)
    pieces: dict[str, int] = {}
    what: object = "nothing"
    for what in ways:
        ended = scenario.run(whole.children, folder, whole.materials, **what)
        outcomes["killed" if ended.code == -9 else "ended before"] += 1
        found = scenario.half_files(folder, whole.files, whole.before)
        if ended.code != -9:
            found += scenario.failed(ended, folder, whole.files)
        found += lost(scenario, folder, pieces)
        wrong += [f"{what}: {problem}" for problem in found]
        pieces = scenario.pieces(folder)
        if ended.code != -9:
            break
    ended = scenario.run(whole.children, folder, whole.materials)
    found = scenario.failed(ended, folder, whole.files) + scenario.differences(folder, whole.files)
    found += lost(scenario, folder, pieces)
    outcomes["completed"] += not found
    return wrong + [f"after {what}: {problem}" for problem in found]


def lost(scenario: Scenario, folder: Path, before: dict[str, int]) -> list[str]:
    """The finished parts that are gone, or were made again."""
    now = scenario.pieces(folder)
    gone = [] if scenario.gathers and not now else [f"lost: {name}" for name in before.keys() - now.keys()]
    return gone + [f"made twice: {name}" for name in before.keys() & now.keys() if before[name] != now[name]]


@pytest.mark.parametrize(("name", "kills"), [("generate", 3), ("batch", 2), ("voices add", 2)])
def test_a_killed_command_loses_nothing_and_leaves_nothing(judged: Judge, name: str, kills: int) -> None:
    judged("Kill", killed, name, kills)


@pytest.mark.torture
@pytest.mark.parametrize("name", [name for name in KILLS if name != JOBS])
def test_two_hundred_kills(judged: Judge, share: Callable[[int], int], name: str) -> None:
    judged("Kill", killed, name, share(KILLS[name]))


def test_a_batch_that_is_killed_beside_the_rename_of_a_file_is_gone_on_with(
    whole: Callable[[str], Any], tmp_path: Path
) -> None:
    """While its record is written, at the rename, and at the first call after it."""
    batch = whole("batch")
    rename = batch.calls.index(("rename", "spoken/output_001.wav"))
    outcomes: Counter[str] = Counter()

    wrong = killed_in([{"call": rename + beside} for beside in (-1, 0, 1)], batch, tmp_path / "run", outcomes)

    assert not wrong, "\n".join(wrong)
    assert outcomes["killed"] == 3


TEXT = "\n\n".join(["One two three four."] * 6)


@pytest.mark.torture
def test_a_killed_server_loses_no_job(
    speaking_bundle: Path, tmp_path: Path, totals: Totals, torture_seed: int, share: Callable[[int], int]
) -> None:
    """A job that gets on is spoken, however often the server is killed, each segment once, as without a kill.

    One of whose segments none is finished in MAX_STARTS starts would be given up, so every third kill waits for one.
    """
    chance = random.Random(f"{torture_seed} jobs")
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    speech: set[str] = set()
    for number in range(share(KILLS[JOBS] // KILLS_OF_A_JOB)):
        folder = tmp_path / f"jobs-{number}"
        with served(speaking_bundle, folder) as (_, url):
            said = {"model": "tts-1", "input": TEXT, "response_format": "wav", "seed": 7}
            answer = httpx2.post(f"{url}/v1/audio/jobs", json=said, timeout=60)
            assert answer.status_code == 202, answer.text
            id_ = str(answer.json()["id"])
            time.sleep(chance.uniform(0, 2))
        pieces, audio = _pieces(folder / id_), _speech(folder / id_)
        outcomes["killed"] += 1
        for kill in range(2, KILLS_OF_A_JOB + 1):
            with served(speaking_bundle, folder) as (_, url):
                if kill % MAX_STARTS == 0:
                    _wait_for_progress(folder / id_, pieces, url, id_)
                else:
                    time.sleep(chance.uniform(0, 2))
            outcomes["killed"] += 1
            now, audio_now = _pieces(folder / id_), _speech(folder / id_)
            if not audio_now:
                wrong += [f"job {number} lost {name}" for name in pieces.keys() - now.keys()]
            if audio and audio_now != audio:
                wrong.append(f"job {number}: the speech is gone, or another, after kill {kill}")
            wrong += [
                f"job {number} made {name} twice" for name in pieces.keys() & now if pieces[name] != now[name]
            ]
            pieces, audio = now, audio_now
            speech |= audio
        with served(speaking_bundle, folder) as (_, url):
            state, said_of_it = ended(url, id_)
            outcomes[f"job {state}"] += 1
            wrong += [] if state == "done" else [f"job {number} {state}: {said_of_it}"]
        left = sorted(path.name for path in (folder / id_).iterdir())
        wrong += [] if left == ["speech.wav"] else [f"job {number} left {left}"]
        speech |= _speech(folder / id_)

    totals.record("Kill", JOBS, outcomes)
    assert not wrong, "\n".join(wrong)
    # All jobs say the same with the same seed, also what lay there after a kill.
    assert len(speech) == 1


def _pieces(job: Path) -> dict[str, int]:
    """The finished segments of a job, with the time at which each was made."""
    return {path.name: path.stat().st_mtime_ns for path in job.rglob("*.segment")}


def _speech(job: Path) -> set[str]:
    """The digest of a job's speech; none before it is there."""
    return {digest for name, digest in files(job).items() if name == "speech.wav"}


def _wait_for_progress(job: Path, pieces: dict[str, int], url: str, id_: str) -> None:
    """Wait until a job has one more segment, or its speech."""
    until = time.monotonic() + LONGEST_WAIT
    while _pieces(job).keys() <= pieces.keys() and not _speech(job):
        assert time.monotonic() < until, httpx2.get(f"{url}/v1/audio/jobs/{id_}", timeout=60).text
        time.sleep(0.05)
