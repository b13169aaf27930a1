"""One call to the system that fails in a server with a job: it refuses to start, or refuses the job, or speaks it."""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from robustness.cases import JOBS
from robustness.folder_contents import calls, files
from robustness.servers import NotBegun, ended, served
from robustness.test_faults import by_role, chosen
from robustness.totals import Totals

SAID = {"model": "tts-1", "input": "Come in.\n\nGo out.", "response_format": "wav", "seed": 7}
KEPT = {"jobs.lock", "jobs.sqlite"}


class Server:
    """A server with one job, again and again in a new folder, and then one that nothing disturbs in the same."""

    def __init__(self, bundle: Path, library: Path, folder: Path) -> None:
        self._bundle, self._library = bundle, library
        self._jobs, self._log = folder / "jobs", folder / "calls.txt"
        self.calls: list[tuple[str, str]] = []
        self._speech = b""
        with served(bundle, self._jobs, library=library, log=self._log) as (process, url):
            (id_,) = self._spoken(url)
            self._speech = _fetched(url, id_)
            process.terminate()
            process.wait(60)
        self.calls = calls(self._log, self._jobs)

    def disturbed(self, call: int, error: int) -> tuple[str, list[str]]:
        """The outcome of a run in which that call fails, and what is wrong."""
        shutil.rmtree(self._jobs)
        wrong, known = [], list[str]()
        try:
            with served(self._bundle, self._jobs, library=self._library, call=call, error=error) as (
                process,
                url,
            ):
                known = self._spoken(url)
                wrong += self._differences(url, known)
                process.terminate()
                _, said = process.communicate(timeout=60)
                wrong += [f"exit code {process.returncode}"] if process.returncode else []
                wrong += [f"not in one line: {said}"] if "Traceback" in said else []
                outcome = "one line" if said else "went on"
        except NotBegun as refused:
            code, said = refused.args
            outcome = "one line"
            wrong += [] if code == 2 and said.startswith("error: ") else [f"exit code {code}: {said}"]
            wrong += [f"not one line: {said}"] if said.count("\n") != 1 else []
        with served(self._bundle, self._jobs) as (process, url):
            known += self._spoken(url)
            wrong += [f"then {problem}" for problem in self._differences(url, known)]
            process.terminate()
            process.wait(60)
        left = files(self._jobs).keys() - KEPT - {f"{id_}/speech.wav" for id_ in known}
        return outcome, wrong + [f"left behind: {path}" for path in sorted(left)]

    def _spoken(self, url: str) -> list[str]:
        """The name of a new job that has ended; none if the server's disk refused it."""
        answer = httpx2.post(f"{url}/v1/audio/jobs", json=SAID, timeout=60)
        if answer.status_code == 507:
            return []
        assert answer.status_code == 202, answer.text
        id_ = str(answer.json()["id"])
        ended(url, id_)
        return [id_]

    def _differences(self, url: str, known: list[str]) -> list[str]:
        """What is wrong with the jobs of a server: those that are known are done, with the samples of any run."""
        listed = httpx2.get(f"{url}/v1/audio/jobs", timeout=60).json()["data"]
        wrong = [f"{job['id']} is {job['state']}: {job['error']}" for job in listed if job["state"] != "done"]
        if {job["id"] for job in listed} != set(known):
            wrong.append(f"{len(listed)} jobs, not {len(known)}")
        return wrong + [f"{id_} has other samples" for id_ in known if _fetched(url, id_) != self._speech]


def _fetched(url: str, id_: str) -> bytes:
    """The speech of a job; nothing if it cannot be had. The disk may refuse once, before the answer or within it."""
    for _ in range(2):
        with contextlib.suppress(httpx2.RemoteProtocolError):
            answer = httpx2.get(f"{url}/v1/audio/jobs/{id_}/audio", timeout=60)
            if answer.status_code != 507:
                return answer.content if answer.status_code == 200 else b""
    return b""


@pytest.fixture(scope="module")
def server(speaking_bundle: Path, system_calls: Path, tmp_path_factory: pytest.TempPathFactory) -> Server:
    return Server(speaking_bundle, system_calls, tmp_path_factory.mktemp("served"))


def judge(server: Server, count: int, seed: int, totals: Totals, part: tuple[int, int] = (0, 1)) -> None:
    """Let that many calls fail, one in each run, or a part of these; fails if something is wrong."""
    outcomes: Counter[str] = Counter()
    wrong = []
    for call, error in chosen(server.calls, count, random.Random(f"{seed} {JOBS}"))[part[0] :: part[1]]:
        outcome, found = server.disturbed(call, error)
        outcomes["wrong" if found else outcome] += 1
        kind, path = server.calls[call]
        wrong += [f"{kind} {path} ({errno.errorcode[error]}, call {call}): {problem}" for problem in found]
    totals.record("Faults", JOBS, outcomes)
    assert not wrong, "\n".join(wrong)


@pytest.mark.torture
def test_one_call_of_each_kind_fails_in_each_role_of_a_servers_files(
    server: Server, totals: Totals, torture_seed: int, share: Callable[[int], int]
) -> None:
    judge(server, share(len(by_role(server.calls))), torture_seed, totals)


@pytest.mark.faults
@pytest.mark.parametrize("part", range(4))
def test_every_call_of_a_server_fails_once(
    server: Server, totals: Totals, torture_seed: int, share: Callable[[int], int], part: int
) -> None:
    judge(server, share(len(server.calls)), torture_seed, totals, (part, 4))
