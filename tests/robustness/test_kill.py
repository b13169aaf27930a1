"""SIGKILL at random moments: no half file under a final name, nothing lost or done twice, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from robustness.scenarios import Scenario, files
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
    whole: Callable[[str], Any],
    tmp_path: Path,
    totals: Totals,
    torture_seed: int,
    share: Callable[[int], int],
    name: str,
) -> None:
    outcomes, wrong = killed(whole(name), tmp_path / "run", share(KILLS[name]), torture_seed)

    totals.record("Kill", name, outcomes)
    assert not wrong, "\n".join(wrong)


PROGRAM = "import sys; from voxcpm_runtime.commands.cli import main; sys.exit(main())"
TEXT = "\n\n".join(["One two three four."] * 6)
JOB_KILLS = 20
JOBS = 4


@pytest.mark.torture
def test_a_killed_server_loses_no_job(
    speaking_bundle: Path, tmp_path: Path, totals: Totals, torture_seed: int, share: Callable[[int], int]
) -> None:
    """A job that was accepted is spoken, however often the server is killed, each segment once, as without a kill."""
    chance = random.Random(f"{torture_seed} jobs")
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    speech: set[str] = set()
    for number in range(share(JOBS)):
        folder = tmp_path / f"jobs-{number}"
        id_, pieces, kills = "", {}, JOB_KILLS // JOBS
        while True:
            with served(speaking_bundle, folder) as (process, url):
                if not id_:
                    said = {"model": "tts-1", "input": TEXT, "response_format": "wav", "seed": 7}
                    answer = httpx2.post(f"{url}/v1/audio/jobs", json=said, timeout=60)
                    assert answer.status_code == 202, answer.text
                    id_ = str(answer.json()["id"])
                if not kills:
                    state = ended(url, id_)
                    outcomes[f"job {state}"] += 1
                    break
                time.sleep(chance.uniform(0, 2))
                process.kill()
                process.wait()
            kills -= 1
            outcomes["killed"] += 1
            now = {path.name: path.stat().st_mtime_ns for path in (folder / id_).rglob("*.segment")}
            if not (folder / id_ / "speech.wav").exists():
                wrong += [f"job {number} lost {name}" for name in pieces.keys() - now.keys()]
            wrong += [
                f"job {number} made {name} twice" for name in pieces.keys() & now if pieces[name] != now[name]
            ]
            pieces = now
        left = sorted(path.name for path in (folder / id_).iterdir())
        wrong += [] if left == ["speech.wav"] else [f"job {number} left {left}"]
        speech |= {digest for name, digest in files(folder / id_).items() if name == "speech.wav"}

    totals.record("Kill", "server jobs", outcomes)
    # All jobs say the same with the same seed.
    assert len(speech) == 1
    assert not wrong, "\n".join(wrong)


@contextlib.contextmanager
def served(bundle: Path, jobs: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, and its URL, which is killed at the end."""
    given = ("serve", bundle, "--port", 0, "--voices-folder", jobs.parent / "voices", "--jobs-folder", jobs)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, given), "--precision", "int8", "--threads", "1"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "VOXCPM_COREML_API_KEYS": ""},
    )
    try:
        line = process.stderr.readline() if process.stderr else ""
        assert line.startswith("listening on http://127.0.0.1:"), line
        yield process, line.split()[2]
    finally:
        process.kill()
        process.communicate()


def ended(url: str, id_: str) -> str:
    """The state in which a job ended."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        state = str(httpx2.get(f"{url}/v1/audio/jobs/{id_}", timeout=60).json()["state"])
        if state in ("done", "failed"):
            return state
        time.sleep(0.1)
    return "hanging"
