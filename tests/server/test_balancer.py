"""haproxy.cfg, the balancer of compose.yaml, with the addresses of two servers on loopback."""

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import ge
from pathlib import Path

import httpx2
import pytest
from websockets.sync.client import connect

from voxcpm_runtime.audio.pcm import pcm16
from waiting import until

CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
pytestmark = pytest.mark.skipif(
    HAPROXY is None, reason="needs haproxy (Debian, Ubuntu: apt-get install haproxy)"
)
BODY = {"model": "tts-1", "input": "One two three.", "response_format": "pcm", "seed": 7}
LONG = "one two three four five six seven. " * 8
PATIENCE = 300
"""Seconds for a speech, for what a server that ends has begun, and for a reader: a busy machine may need that many."""


@dataclass
class Balanced:
    """A balancer and two servers behind it: one for speech, without a queue, and one that also takes jobs."""

    url: str
    speaking: tuple[subprocess.Popen[str], str]
    jobs: tuple[subprocess.Popen[str], str]

    def ready(self, count):
        """Whether that many of the balancer's servers are ready."""
        return self._counts("speech") == count

    def _counts(self, backend):
        rows = httpx2.get(f"{self.url}/stats;csv").text.splitlines()
        names = rows[0].removeprefix("# ").split(",")
        found = (dict(zip(names, row.split(","), strict=False)) for row in rows[1:])
        return sum(
            row["pxname"] == backend and row["svname"] != "BACKEND" and row["status"] == "UP" for row in found
        )


@pytest.fixture
def balanced(started, tmp_path):
    patience = ("--drain-seconds", str(PATIENCE), "--client-timeout", str(PATIENCE))
    speaking = started("--concurrency", "2", "--queue", "0", "--max-jobs", "0", *patience)
    jobs = started("--max-jobs", "20", *patience)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = CONFIGURATION.read_text(encoding="utf-8")
    for pattern, new, count in (
        (r"bind :8000", f"bind 127.0.0.1:{port}\n    stats enable\n    stats uri /stats", 1),
        (r"server-template speech .*", f"server speech {speaking[1].removeprefix('http://')}", 1),
        (r"server jobs .*", f"server jobs {jobs[1].removeprefix('http://')}", 2),
    ):
        text, found = re.subn(pattern, new, text)
        assert found == count
    (tmp_path / "haproxy.cfg").write_text(text)
    process = subprocess.Popen(
        [str(HAPROXY), "-db", "-f", tmp_path / "haproxy.cfg"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        made = Balanced(f"http://127.0.0.1:{port}", speaking, jobs)
        until(lambda: answers(made.url))
        until(lambda: made.ready(2))
        yield made
    finally:
        process.kill()
        process.wait()


def answers(url):
    try:
        return httpx2.get(f"{url}/ready").status_code == 200
    except httpx2.TransportError:
        return False


def speak(url, **fields):
    return httpx2.post(f"{url}/v1/audio/speech", json=BODY | fields, timeout=PATIENCE)


def speaking(server):
    return int(httpx2.get(f"{server[1]}/ready").json()["speaking"])


def test_requests_are_proxied(balanced):
    # Audio is streamed, and the less busy server is chosen.
    given = {"json": BODY | {"input": LONG}, "timeout": PATIENCE}
    began = time.perf_counter()
    with httpx2.stream("POST", f"{balanced.url}/v1/audio/speech", **given) as answer:
        parts = answer.iter_raw()
        next(parts)
        first = time.perf_counter() - began
        with httpx2.stream("POST", f"{balanced.url}/v1/audio/speech", **given) as other:
            # Kept: with the iterator the answer would be closed.
            others = other.iter_raw()
            next(others)
            busy = [speaking(server) for server in (balanced.speaking, balanced.jobs)]
        for _ in parts:
            pass
    assert first < (time.perf_counter() - began) / 2
    assert busy == [1, 1]
    # Websockets.
    with connect(f"{balanced.url.replace('http', 'ws')}/v1/audio/stream") as websocket:
        for message in (
            {"type": "start", "seed": 7},
            {"type": "text", "text": BODY["input"]},
            {"type": "end"},
        ):
            websocket.send(json.dumps(message))
        sizes = [len(message) for message in websocket_messages(websocket)]
    assert sum(sizes) > 10_000
    # The same origin is accepted, another is rejected.
    own = httpx2.get(f"{balanced.url}/v1/models", headers={"Origin": balanced.url})
    foreign = httpx2.get(f"{balanced.url}/v1/models", headers={"Origin": "https://example.org"})
    assert (own.status_code, foreign.status_code) == (200, 403)
    # Jobs go to the server that takes them, and /v1/about reports them.
    for _ in range(4):
        job = httpx2.post(f"{balanced.url}/v1/audio/jobs", json=BODY)
        assert job.status_code == 202, job.text
        assert httpx2.get(f"{balanced.url}/v1/audio/{job.headers['location']}").status_code == 200
        assert httpx2.get(f"{balanced.url}/v1/about").json()["jobs"] is True
    assert len(httpx2.get(f"{balanced.url}/audio/jobs").json()["data"]) == 4
    assert httpx2.get(f"{balanced.url}/metrics").status_code == 501


def websocket_messages(websocket):
    """The audio of a speech."""
    for message in websocket:
        if isinstance(message, bytes):
            yield message
        elif json.loads(message)["type"] in {"done", "error"}:
            return


def test_full_server_fails_over_to_another(balanced):
    with contextlib.ExitStack() as stack:
        streams = []
        for _ in range(2):
            given = {"json": BODY | {"input": LONG * 8}, "timeout": PATIENCE}
            answer = stack.enter_context(
                httpx2.stream("POST", f"{balanced.speaking[1]}/v1/audio/speech", **given)
            )
            # Kept: with the iterator the answer would be closed.
            streams.append(answer.iter_raw())
            next(streams[-1])
        # Ties are broken by round robin.
        given_back = [speak(balanced.url, input="One.").status_code for _ in range(4)]
        assert speaking(balanced.speaking) == 2
    assert given_back == [200] * 4


def test_no_request_fails_while_a_server_shuts_down(balanced, tts):
    said = BODY["input"]
    expected, long_one = (pcm16(tts.generate(t, seed=7, retry_badcase=False)).tobytes() for t in (said, LONG))
    stop = threading.Event()
    # One speaks. Two list, so that some requests come between the end and the balancer's next look.
    spoken, *listed = answered = ([], [], [])

    def ask(once, given):
        while not stop.is_set():
            given.append(once())

    with ThreadPoolExecutor(4) as threads:
        long = threads.submit(speak, balanced.url, input=LONG)
        both = (balanced.speaking, balanced.jobs)
        until(lambda: any(map(speaking, both)))
        ends, stays = both if speaking(balanced.speaking) else both[::-1]
        asking = [threads.submit(ask, lambda: speak(balanced.url), spoken)]
        asking += [
            threads.submit(ask, lambda: httpx2.get(f"{balanced.url}/v1/models"), given) for given in listed
        ]

        def all_ask_again():
            """Wait until each has completed a request from then on, or one has failed."""
            # The next response may belong to a request already in flight.
            wanted = [len(given) + 2 for given in answered]
            until(
                lambda: any(each.done() for each in asking) or all(map(ge, map(len, answered), wanted)),
                PATIENCE,
            )

        try:
            all_ask_again()
            ends[0].send_signal(signal.SIGTERM)
            assert not long.done(), "the server had nothing to speak when it ended"
            until(lambda: ends[0].poll() is not None, PATIENCE)
            until(lambda: balanced.ready(1))
            all_ask_again()
        finally:
            stop.set()
        for each in asking:
            each.result()

    assert {(answer.status_code, answer.content == expected) for answer in spoken} == {(200, True)}
    assert {answer.status_code for given in listed for answer in given} == {200}
    # The speech that the stopping server had started.
    assert long.result().content == long_one

    # Without servers, the balancer's own response has the servers' error format.
    stays[0].send_signal(signal.SIGTERM)
    stays[0].wait(PATIENCE)
    refused = speak(balanced.url)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_server")
    assert int(refused.headers["retry-after"]) >= 1
