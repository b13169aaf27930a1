"""`serve --ray`: the plain server's samples, as they are made, from replicas of Ray Serve."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from voxcpm_runtime import VoxCPM, pcm16
from waiting import until

Start = Callable[..., subprocess.Popen[str]]
TEXT = "one two three four five six seven. " * 8
BODY = {"model": "tts-1", "input": TEXT, "response_format": "pcm", "seed": 7}


@pytest.fixture
def server(bundle: Path, started: Start, tmp_path: Path) -> tuple[subprocess.Popen[str], str]:
    """A server with one replica on a new cluster of this machine, and its URL."""
    process = started(
        "serve", bundle, "--ray", "--port", 0, "--threads", 1, "--voices-folder", tmp_path / "voices"
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("listening on http://127.0.0.1:"), line + process.stderr.read()
    return process, line.split()[2]


def test_samples_are_the_plain_servers_and_come_as_they_are_made(
    server: tuple[subprocess.Popen[str], str], bundle: Path
) -> None:
    _, url = server
    with VoxCPM.from_bundle(bundle, threads=1) as tts:
        assert tts.sample_rate == 24_000
        expected = pcm16(tts.generate(TEXT, seed=7, retry_badcase=False)).tobytes()

    # The first bytes come long before the end.
    began = time.perf_counter()
    with httpx2.stream("POST", f"{url}/v1/audio/speech", json=BODY, timeout=60) as answer:
        parts = answer.iter_raw()
        received = next(parts)
        first = time.perf_counter() - began
        received += b"".join(parts)
    whole = time.perf_counter() - began
    assert answer.headers["x-seed"] == "7"
    assert received == expected
    assert first < whole / 2

    # Errors are the app's own, and what one replica cannot know is refused.
    unknown = httpx2.post(f"{url}/v1/audio/speech", json=BODY | {"voice": "nobody"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "voice")
    metrics = httpx2.get(f"{url}/metrics")
    assert (metrics.status_code, "--ray" in metrics.json()["error"]["message"]) == (501, True)
    evil = httpx2.get(f"{url}/v1/models", headers={"Host": "evil.example"})
    assert evil.status_code == 403


def test_a_client_that_goes_away_frees_its_place_and_sigterm_lets_a_speech_end(
    server: tuple[subprocess.Popen[str], str], bundle: Path
) -> None:
    process, url = server
    with VoxCPM.from_bundle(bundle, threads=1) as tts:
        expected = pcm16(tts.generate(TEXT, seed=7, retry_badcase=False)).tobytes()
    with httpx2.stream(
        "POST", f"{url}/v1/audio/speech", json=BODY | {"input": TEXT * 8}, timeout=60
    ) as answer:
        next(answer.iter_raw())
        assert httpx2.get(f"{url}/ready").json()["speaking"] == 1
    until(lambda: httpx2.get(f"{url}/ready").json()["speaking"] == 0, 5)

    # SIGTERM lets a speech end.
    answers: list[Any] = []
    asking = threading.Thread(
        target=lambda: answers.append(httpx2.post(f"{url}/v1/audio/speech", json=BODY, timeout=60).content)
    )
    asking.start()
    until(lambda: httpx2.get(f"{url}/ready").json()["speaking"] == 1, 10)
    process.send_signal(signal.SIGTERM)
    asking.join(60)
    rest = process.communicate(timeout=60)[1]
    assert (process.returncode, rest) == (0, "")
    assert answers == [expected]


def test_what_cannot_work_on_a_cluster_is_one_line(
    bundle: Path, cluster: Any, started: Start, tmp_path: Path
) -> None:
    there = ("--ray", "--ray-address", cluster.address)
    for options, words in (
        ((*there,), "name it with --voices-folder"),
        ((*there, "--voices-folder", tmp_path, "--port", 0), "name the port"),
        (("--ray", "--device", "cuda:1"), "Ray chooses the GPU"),
        (("--ray", "--ray-address", "127.0.0.1:1"), "cannot be reached"),
        (("--replicas", 2), "need --ray"),
        (("--ray", "--replicas", 4, "--max-replicas", 2), "at least --replicas 4"),
    ):
        process = started("serve", bundle, *options)
        printed, errors = process.communicate(timeout=60)
        assert (process.returncode, printed) == (2, ""), errors
        (line,) = errors.splitlines()
        assert line.startswith("error: ")
        assert words in line
