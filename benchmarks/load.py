"""Load test: many concurrent clients on a server of this checkout, some of them slow, disconnecting or invalid.

    python benchmarks/load.py [BUNDLE] [--clients 100] [--warm-up 30] [--seconds 60] [--seed 0] [--json FILE]
                              [--serve OPTIONS]

The default bundle is the built-in voice. The server is its own process (`voxcpm-coreml serve`). Each client sends one
request after another: first for `--warm-up` seconds, in which memory grows to what this load needs, then for
`--seconds` seconds, which are judged. Requests are drawn with the seed:

    reader        reads the stream as fast as it arrives
    slow reader   reads at half the pace of playback
    whole         waits for the whole response ("stream": false)
    leaver        disconnects in the middle of the speech
    wrong         sends a request that must be rejected

A client that gets a 503 waits for `Retry-After`, at most two seconds. The exit code is 1 unless

- every error is a 503, or the right status for a wrong request;
- every response has the samples of the same call alone, computed in advance in this process;
- the server's resident memory does not grow after the warm-up.

Times to first audio and underruns after the warm-up are printed with the other figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil

from voxcpm_runtime import VoxCPM
from voxcpm_runtime.audio.pcm import pcm16

TEXTS = (
    "Hello there.", "It is late, and nobody is here.", "Come in, please.", "We shall see what comes of it.",
    "The sun came out, and the birds began to sing.", "Who is there?",
)  # fmt: skip
SEEDS = 2
WRONG: tuple[tuple[int, dict[str, Any] | bytes], ...] = (
    (400, b"{"),
    (400, {"model": "tts-1", "input": ""}),
    (400, {"model": "tts-1", "input": "a" * 5000}),
    (400, {"model": "tts-1", "input": "Hello.", "response_format": "tape"}),
    (400, {"model": "tts-1", "input": "Hello.", "cfg_value": 1e9}),
    (404, {"model": "tts-9", "input": "Hello."}),
    (404, {"model": "tts-1", "input": "Hello.", "voice": "nobody"}),
)
KINDS = {"reader": 0.55, "slow reader": 0.15, "whole": 0.1, "leaver": 0.1, "wrong": 0.1}
MAX_WAIT = 2.0
MEMORY_ALLOWANCE = 0.03
"""Relative growth of resident memory after the warm-up that is not considered a leak."""
Expected = dict[tuple[str, int, bool], bytes]
"""16-bit samples by text, seed, and whether the response is whole."""


@dataclass
class Outcome:
    """Results of all clients. Errors and wrong samples count from the first request, all figures after the warm-up."""

    judged_from: float
    """End of the warm-up, by `time.perf_counter`."""
    statuses: Counter[int] = field(default_factory=Counter)
    """Responses by status; 0 is a connection that ended without one."""
    finished: Counter[str] = field(default_factory=Counter)
    """Successful requests, by kind."""
    wrong: list[str] = field(default_factory=list)
    first_audio: list[float] = field(default_factory=list)
    """Seconds from a request to its first audio, of streams."""
    underruns: int = 0
    """Readers that had played everything before the next audio arrived."""
    audio_seconds: float = 0.0
    memory: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the end of the warm-up, and the server's resident bytes."""


class Server:
    """A server process on loopback."""

    def __init__(self, bundle: str | None, options: Sequence[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        program = "import sys; from voxcpm_runtime.commands.cli import main; sys.exit(main())"
        arguments = [*([bundle] if bundle else []), "--port", str(port), "--quiet", *options]
        self.process = subprocess.Popen([sys.executable, "-c", program, "serve", *arguments])  # noqa: S603 - our own

    def wait_until_ready(self) -> None:
        """Wait until it accepts requests. Raises SystemExit if it does not."""
        end = time.monotonic() + 300
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(httpx2.TransportError):
                if httpx2.get(f"{self.url}/ready", timeout=10).status_code == 200:
                    return
            time.sleep(0.1)
        raise SystemExit("the server did not start")

    def resident_bytes(self) -> int:
        """Resident memory; 0 after its end."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return int(psutil.Process(self.process.pid).memory_info().rss)
        return 0

    def end(self) -> int:
        """Terminate it like a supervisor, and return its exit code."""
        self.process.terminate()
        return self.process.wait(60)


def expected_samples(bundle: str | None) -> tuple[Expected, int]:
    """The samples of each request alone on this bundle, and the sample rate."""
    with VoxCPM.from_bundle(bundle) as tts, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {
            (text, seed, whole): pcm16(
                tts.generate(text, seed=seed)
                if whole
                else np.concatenate([*tts.generate_streaming(text, seed=seed)])
            ).tobytes()
            for text in TEXTS
            for seed in range(SEEDS)
            for whole in (False, True)
        }
        return expected, tts.sample_rate


class Client:
    """A client that sends one request after another."""

    def __init__(
        self,
        number: int,
        seed: int,
        http: httpx2.AsyncClient,
        expected: Expected,
        rate: int,
        outcome: Outcome,
    ) -> None:
        self._random = random.Random(f"{seed} {number}")  # noqa: S311 - no secret
        self._http, self._expected, self._rate, self._outcome = http, expected, rate, outcome

    async def work(self, until: float) -> None:
        """Send requests until that time (`time.perf_counter`); the last one is completed."""
        while time.perf_counter() < until:
            kind = self._random.choices(list(KINDS), list(KINDS.values()))[0]
            try:
                wait = await (self._send_wrong() if kind == "wrong" else self._send(kind))
            except httpx2.TransportError as error:
                self._outcome.statuses[0] += 1
                self._outcome.wrong.append(f"{kind}: {type(error).__name__}: {error}")
                wait = 0.5
            await asyncio.sleep(min(wait, max(0.0, until - time.perf_counter())))

    async def _send_wrong(self) -> float:
        expected, body = self._random.choice(WRONG)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        response = await self._http.post("/v1/audio/speech", content=content, headers=headers)
        self._outcome.statuses[response.status_code] += 1
        if response.status_code == expected:
            self._outcome.finished["wrong"] += time.perf_counter() >= self._outcome.judged_from
        elif response.status_code != 503:
            self._outcome.wrong.append(f"expected {expected} for {body!r:.80}, got {response.status_code}")
        return _retry_after(response)

    async def _send(self, kind: str) -> float:
        text, seed, whole = self._random.choice(TEXTS), self._random.randrange(SEEDS), kind == "whole"
        request = {"model": "tts-1", "input": text, "seed": seed, "stream": not whole}
        request |= {"response_format": "pcm", "sample_rate": self._rate}
        disconnect_after = self._random.randrange(1, 40_000) if kind == "leaver" else None
        began = time.perf_counter()
        judged = began >= self._outcome.judged_from
        async with self._http.stream("POST", "/v1/audio/speech", json=request) as response:
            self._outcome.statuses[response.status_code] += 1
            if response.status_code != 200:
                if response.status_code != 503:
                    self._outcome.wrong.append(
                        f"expected 200 or 503 for {request}, got {response.status_code}"
                    )
                return _retry_after(response)
            body = await self._body(response, kind, disconnect_after, began, judged=judged)
        expected = self._expected[text, seed, whole]
        if body == (expected if disconnect_after is None else expected[: len(body)]):
            self._outcome.finished[kind] += judged
            self._outcome.audio_seconds += judged * len(body) / 2 / self._rate
        else:
            self._outcome.wrong.append(f"{kind}: samples differ from the single run for {request}")
        return 0.0

    async def _body(
        self,
        response: httpx2.Response,
        kind: str,
        disconnect_after: int | None,
        began: float,
        *,
        judged: bool,
    ) -> bytes:
        body, played_until, underrun = b"", 0.0, False
        async for part in response.aiter_raw():
            now = time.perf_counter()
            if judged and not body and kind != "whole":
                self._outcome.first_audio.append(now - began)
            underrun = underrun or (bool(body) and now > played_until)
            played_until = max(played_until, now) + len(part) / 2 / self._rate
            body += part
            if disconnect_after is not None and len(body) > disconnect_after:
                break
            if kind == "slow reader":
                await asyncio.sleep(len(part) / self._rate)
        self._outcome.underruns += judged and underrun and kind == "reader"
        return body


def _retry_after(response: httpx2.Response) -> float:
    """Seconds to wait before the next request."""
    return min(float(response.headers.get("retry-after", 0)), MAX_WAIT)


async def load(
    server: Server, clients: int, warm_up: float, seconds: float, seed: int, bundle: str | None
) -> Outcome:
    """Run the clients and return their results."""
    expected, rate = await asyncio.to_thread(expected_samples, bundle)
    outcome = Outcome(time.perf_counter() + warm_up)

    async def watch() -> None:
        while True:
            outcome.memory.append((time.perf_counter() - outcome.judged_from, server.resident_bytes()))
            await asyncio.sleep(0.5)

    # One connection per request, as from independent programs.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(base_url=server.url, timeout=600, limits=limits) as http:
        watching = asyncio.ensure_future(watch())
        working = [Client(number, seed, http, expected, rate, outcome) for number in range(clients)]
        until = outcome.judged_from + seconds
        await asyncio.gather(*(client.work(until) for client in working))
        watching.cancel()
    return outcome


def memory_growth(outcome: Outcome, seconds: float) -> float:
    """Relative growth of resident memory in the judged time, between medians of its first and last tenth."""
    judged = [size for at, size in outcome.memory if 0 <= at <= seconds]
    tenth = max(1, len(judged) // 10)
    if not judged or not judged[0]:
        return 0.0
    return statistics.median(judged[-tenth:]) / statistics.median(judged[:tenth]) - 1


def figures(outcome: Outcome, seconds: float) -> dict[str, Any]:
    """The figures of a run, by name."""
    judged = [size for at, size in outcome.memory if 0 <= at <= seconds]
    waits = sorted(outcome.first_audio)
    percentiles = {f"p{p}": round(waits[int(p / 100 * len(waits))], 3) if waits else None for p in (50, 95)}
    return {
        "responses by status, warm-up included": dict(sorted(outcome.statuses.items())),
        "finished, equal to the single run": dict(outcome.finished),
        "audio, s": round(outcome.audio_seconds, 1),
        "first audio of streams, s": percentiles,
        "readers": outcome.finished["reader"],
        "underruns": outcome.underruns,
        "resident MB after the warm-up, min and max": [
            round(min(judged, default=0) / 1e6, 1), round(max(judged, default=0) / 1e6, 1),
        ],
        "resident MB, every ten seconds, warm-up included": [
            round(size / 1e6, 1) for _, size in outcome.memory[::20]
        ],
        "growth of resident memory": round(memory_growth(outcome, seconds), 4),
        "wrong, warm-up included": len(outcome.wrong),
    }  # fmt: skip


def failures(outcome: Outcome, seconds: float) -> Iterator[str]:
    """Violated conditions, one line each."""
    yield from outcome.wrong
    if bad := {status for status in outcome.statuses if status >= 500 and status != 503}:
        yield f"responses with status {sorted(bad)}"
    if not outcome.finished["reader"]:
        yield "no reader was served"
    # In a short run, memory that is used for the first time is not a leak.
    if seconds >= 30 and (growth := memory_growth(outcome, seconds)) > MEMORY_ALLOWANCE:
        yield f"resident memory grew by {growth:.1%}"


def main() -> None:
    """Run the load test. Exits with 1 if a condition is violated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", nargs="?")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--warm-up", type=float, default=30, help="seconds of unmeasured load first")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="options of `serve`; goes last")
    options = parser.parse_args()
    server = Server(options.bundle, options.serve)
    try:
        server.wait_until_ready()
        run = load(server, options.clients, options.warm_up, options.seconds, options.seed, options.bundle)
        outcome = asyncio.run(run)
        found = figures(outcome, options.seconds)
    finally:
        code = server.end()
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    wrong = [*failures(outcome, options.seconds), *([f"the server exited with {code}"] if code else [])]
    for line in wrong[:20]:
        print(f"wrong: {line}", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
