"""Many clients at once on a server of this checkout, over loopback, some of them slow, gone or wrong.

    python benchmarks/load.py [BUNDLE] [--clients 100] [--warm-up 30] [--seconds 60] [--seed 0] [--json FILE]
                              [--serve OPTIONS]

Without a bundle it is the built-in voice. The server is a process of its own (`voxcpm-coreml serve`). Each client asks
for one speech after another until the time is over: first for `--warm-up` seconds, in which the server takes the memory
that this load needs, then for `--seconds` seconds, which are judged. Each request is drawn with the seed:

    reader        takes the speech as it comes
    slow reader   takes it at half the pace at which it would be heard
    whole         waits for the whole answer ("stream": false)
    leaver        goes away in the middle of the speech
    wrong         sends what must be refused

A client that is refused with 503 waits as long as the answer says, at most two seconds, and goes on. What counts:

- no error but 503, and what is refused is refused with the right status;
- every answer that was read to its end has the samples of the same call alone, computed before in this process;
- the server's resident memory after the warm-up.

It prints figures, first audio and underruns after the warm-up among them, and ends with 1 if one of these does not
hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voxcpm_runtime import VoxCPM, pcm16

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
LONGEST_WAIT = 2.0
# Of what the server holds after the warm-up, how much more at the end is no leak.
MEMORY_ALLOWANCE = 0.03
Expected = dict[tuple[str, int, bool], bytes]
"""16-bit samples by text, seed, and whether the answer is whole."""


@dataclass
class Outcome:
    """What all clients saw. Errors and wrong samples count from the first request on, all figures after the warm-up."""

    judged_from: float
    """When the warm-up is over, by `time.perf_counter`."""
    statuses: Counter[int] = field(default_factory=Counter)
    """Answers by status; 0 is a connection that ended without one."""
    finished: Counter[str] = field(default_factory=Counter)
    """Requests that went as they should, by kind."""
    wrong: list[str] = field(default_factory=list)
    first_audio: list[float] = field(default_factory=list)
    """Seconds from a request to its first audio, of streams."""
    underruns: int = 0
    """Readers that had heard everything before the next audio came."""
    audio_seconds: float = 0.0
    memory: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the end of the warm-up, and the server's resident bytes."""

    @property
    def is_judged(self) -> bool:
        """Whether the warm-up is over."""
        return time.perf_counter() >= self.judged_from


class Server:
    """A server process on loopback."""

    def __init__(self, bundle: str | None, options: Sequence[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        program = "import sys; from voxcpm_runtime.commands.cli import main; sys.exit(main())"
        given = [*([bundle] if bundle else []), "--port", str(self.port), "--quiet", *options]
        self.process = subprocess.Popen([sys.executable, "-c", program, "serve", *given])  # noqa: S603 - our own

    def wait_until_ready(self, seconds: float = 300) -> None:
        """Wait until it takes requests. Raises SystemExit if it does not."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError, IndexError, ValueError):
                if int(self.get("/ready").split()[1]) == 200:
                    return
            time.sleep(0.1)
        raise SystemExit("the server did not begin")

    def get(self, path: str) -> str:
        """The answer to a GET, headers and all."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            with connection.makefile("rb") as file:
                return file.read().decode()

    def resident_bytes(self) -> int:
        """Resident memory; 0 where there is no /proc."""
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return 0

    def end(self) -> int:
        """End it as a supervisor does: its exit code."""
        self.process.terminate()
        return self.process.wait(60)


def expected_samples(bundle: str | None) -> tuple[Expected, int]:
    """What each request says alone on this bundle, and the sample rate."""
    with VoxCPM.from_bundle(bundle) as tts, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {
            (text, seed, whole): pcm16(tts.generate(text, seed=seed, retry_badcase=whole)).tobytes()
            for text in TEXTS
            for seed in range(SEEDS)
            for whole in (False, True)
        }
        return expected, tts.sample_rate


class Client:
    """One client, which asks again and again."""

    def __init__(
        self, number: int, seed: int, port: int, expected: Expected, rate: int, outcome: Outcome
    ) -> None:
        self._random = random.Random(f"{seed} {number}")  # noqa: S311 - no secret
        self._port = port
        self._expected = expected
        self._rate = rate
        self._outcome = outcome

    async def work(self, until: float) -> None:
        """Ask until then (`time.perf_counter`); what has begun is read to its end."""
        while time.perf_counter() < until:
            kind = self._random.choices(list(KINDS), list(KINDS.values()))[0]
            try:
                wait = await (self._ask_wrongly() if kind == "wrong" else self._ask(kind))
            except (OSError, EOFError, ValueError) as error:
                self._outcome.statuses[0] += 1
                self._outcome.wrong.append(f"{kind}: {type(error).__name__}: {error}")
                wait = 0.5
            await asyncio.sleep(min(wait, max(0.0, until - time.perf_counter())))

    async def _ask_wrongly(self) -> float:
        expected, body = self._random.choice(WRONG)
        async with self._answer(body if isinstance(body, bytes) else json.dumps(body).encode()) as answer:
            await answer.read()
        if answer.status == expected:
            self._outcome.finished["wrong"] += self._outcome.is_judged
        elif answer.status != 503:
            self._outcome.wrong.append(f"expected {expected} for {body!r:.80}, got {answer.status}")
        return answer.retry_after

    async def _ask(self, kind: str) -> float:
        text, seed, whole = self._random.choice(TEXTS), self._random.randrange(SEEDS), kind == "whole"
        given = {"model": "tts-1", "input": text, "seed": seed, "stream": not whole}
        given |= {"response_format": "pcm", "sample_rate": self._rate}
        leaves_after = self._random.randrange(1, 40_000) if kind == "leaver" else None
        began, judged = time.perf_counter(), self._outcome.is_judged
        async with self._answer(json.dumps(given).encode()) as answer:
            if answer.status != 200:
                await answer.read()
                if answer.status != 503:
                    self._outcome.wrong.append(f"expected 200 or 503 for {given}, got {answer.status}")
                return answer.retry_after
            body = await self._body(answer, kind, leaves_after, began, judged=judged)
        wanted = self._expected[text, seed, whole]
        if leaves_after is not None:
            wanted = wanted[: len(body)]
        if body == wanted:
            self._outcome.finished[kind] += judged
            self._outcome.audio_seconds += judged * len(body) / 2 / self._rate
        else:
            self._outcome.wrong.append(f"{kind}: other samples than alone for {given}")
        return 0.0

    async def _body(
        self, answer: Answer, kind: str, leaves_after: int | None, began: float, *, judged: bool
    ) -> bytes:
        parts: list[bytes] = []
        size, heard_until, ran_out = 0, 0.0, False
        async for part in answer.parts():
            now = time.perf_counter()
            if judged and not parts and kind != "whole":
                self._outcome.first_audio.append(now - began)
            ran_out = ran_out or (bool(parts) and now > heard_until)
            heard_until = max(heard_until, now) + len(part) / 2 / self._rate
            parts.append(part)
            size += len(part)
            if leaves_after is not None and size > leaves_after:
                break
            if kind == "slow reader":
                await asyncio.sleep(len(part) / self._rate)
        self._outcome.underruns += judged and ran_out and kind == "reader"
        return b"".join(parts)

    @contextlib.asynccontextmanager
    async def _answer(self, body: bytes) -> AsyncIterator[Answer]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + body)
            answer = await Answer.begun(reader)
            self._outcome.statuses[answer.status] += 1
            yield answer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@dataclass
class Answer:
    """An answer whose headers have come."""

    reader: asyncio.StreamReader
    status: int
    headers: dict[str, str]

    @classmethod
    async def begun(cls, reader: asyncio.StreamReader) -> Answer:
        """Read the headers. Raises EOFError if the connection ends before they do."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        pairs = (line.split(":", 1) for line in head[1:] if line)
        return cls(reader, int(head[0].split()[1]), {name.lower(): value.strip() for name, value in pairs})

    @property
    def retry_after(self) -> float:
        """Seconds to wait before the next request."""
        return min(float(self.headers.get("retry-after", 0)), LONGEST_WAIT)

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([part async for part in self.parts()])

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises EOFError if the connection ends before it does."""
        if "content-length" in self.headers:
            yield await self.reader.readexactly(int(self.headers["content-length"]))
            return
        while size := int(await self.reader.readline(), 16):
            part = await self.reader.readexactly(size + 2)
            yield part[:-2]
        await self.reader.readline()


async def load(
    server: Server, clients: int, warm_up: float, seconds: float, seed: int, bundle: str | None
) -> tuple[Outcome, str]:
    """Let the clients ask for so long: what they saw, and the server's metrics at the end of the warm-up."""
    expected, rate = await asyncio.to_thread(expected_samples, bundle)
    outcome = Outcome(time.perf_counter() + warm_up)
    exposition = ""

    async def watch() -> None:
        while True:
            outcome.memory.append((time.perf_counter() - outcome.judged_from, server.resident_bytes()))
            await asyncio.sleep(0.5)

    async def look_after_the_warm_up() -> None:
        nonlocal exposition
        await asyncio.sleep(warm_up)
        exposition = await asyncio.to_thread(server.get, "/metrics")

    watching = asyncio.ensure_future(watch())
    asking = [Client(number, seed, server.port, expected, rate, outcome) for number in range(clients)]
    until = outcome.judged_from + seconds
    await asyncio.gather(look_after_the_warm_up(), *(client.work(until) for client in asking))
    watching.cancel()
    return outcome, exposition


def memory_growth(outcome: Outcome, seconds: float) -> float:
    """Growth of resident memory in the judged time, as a share: of medians of its first and last tenth."""
    judged = [size for at, size in outcome.memory if 0 <= at <= seconds]
    tenth = max(1, len(judged) // 10)
    if not judged or not judged[0]:
        return 0.0
    return statistics.median(judged[-tenth:]) / statistics.median(judged[:tenth]) - 1


def figures(outcome: Outcome, seconds: float, before: str, after: str) -> dict[str, Any]:
    """The figures of a run, by name. before, after: the server's metrics around the judged time."""
    judged = [size for at, size in outcome.memory if 0 <= at <= seconds]
    waits = sorted(outcome.first_audio)
    underruns = "voxcpm_underruns_total"
    return {
        "answers by status, warm-up included": dict(sorted(outcome.statuses.items())),
        "finished, equal to the single run": dict(outcome.finished),
        "audio, s": round(outcome.audio_seconds, 1),
        "first audio of streams, s": {
            "p50": round(_quantile(waits, 0.5), 3),
            "p95": round(_quantile(waits, 0.95), 3),
        },
        "readers": outcome.finished["reader"],
        "underruns seen by readers": outcome.underruns,
        "underruns counted by the server": int(_metric(after, underruns) - _metric(before, underruns)),
        "resident MB after the warm-up, least and most": [
            round(min(judged, default=0) / 1e6, 1), round(max(judged, default=0) / 1e6, 1),
        ],
        "resident MB, every ten seconds, warm-up included": [
            round(size / 1e6, 1) for _, size in outcome.memory[::20]
        ],
        "growth of resident memory": round(memory_growth(outcome, seconds), 4),
        "wrong, warm-up included": len(outcome.wrong),
    }  # fmt: skip


def _quantile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def _metric(exposition: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", exposition, re.MULTILINE)
    return float(found[1]) if found else float("nan")


def failures(outcome: Outcome, seconds: float) -> Iterator[str]:
    """What does not hold."""
    yield from outcome.wrong
    if bad := {status for status in outcome.statuses if status >= 500 and status != 503}:
        yield f"answers with {sorted(bad)}"
    if not outcome.finished["reader"]:
        yield "no reader was served"
    # In a few seconds memory that is used for the first time is no leak.
    if seconds >= 30 and (growth := memory_growth(outcome, seconds)) > MEMORY_ALLOWANCE:
        yield f"resident memory grew by {growth:.1%}"


def main() -> None:
    """Run it. Exits with 1 if something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", nargs="?")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument(
        "--warm-up", type=float, default=30, help="seconds of the same load before, not judged"
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--serve", nargs=argparse.REMAINDER, default=[], help="options of `serve`; the last one"
    )
    given = parser.parse_args()
    server = Server(given.bundle, given.serve)
    try:
        server.wait_until_ready()
        run = load(server, given.clients, given.warm_up, given.seconds, given.seed, given.bundle)
        outcome, before = asyncio.run(run)
        found = figures(outcome, given.seconds, before, server.get("/metrics"))
    finally:
        code = server.end()
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    wrong = [*failures(outcome, given.seconds), *([f"the server ended with {code}"] if code else [])]
    for line in wrong[:20]:
        print(f"wrong: {line}", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
