"""`serve --ray-address` on a cluster that runs already: replicas on both of its nodes, one of which is killed."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from voxcpm_runtime import VoxCPM, pcm16
from waiting import until

Start = Callable[..., subprocess.Popen[str]]
LONG = "one two three four five six seven. " * 8
SHORT = "One two three."


def replicas(node: Any) -> list[psutil.Process]:
    """The processes of replicas on a node."""
    (raylet,) = node.all_processes["raylet"]
    children = psutil.Process(raylet.process.pid).children(recursive=True)
    return [process for process in children if "ServeReplica" in command_line(process)]


def command_line(process: psutil.Process) -> str:
    """The command of a process; nothing for one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture
def url(
    bundle: Path, cluster: Any, nodes: list[Any], started: Start, listening: Any, tmp_path: Path
) -> Iterator[str]:
    """A server with two replicas, one on each node, since each needs the node's only processor."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    there = ("--ray", "--ray-address", cluster.address, "--voices-folder", tmp_path / "voices")
    process = started(
        "serve", bundle, *there, "--port", port, "--threads", 1, "--replicas", 2, "--concurrency", 2
    )
    assert listening(process) == f"http://127.0.0.1:{port}"
    assert [len(replicas(node)) for node in nodes] == [1, 1]
    yield f"http://127.0.0.1:{port}"
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=60)[1]
    assert (process.returncode, rest.strip()) == (0, "")


@pytest.fixture(scope="module")
def expected(bundle: Path) -> dict[str, bytes]:
    """What every answer says: the plain server's samples."""
    with VoxCPM.from_bundle(bundle, threads=1) as tts:
        return {
            text: pcm16(tts.generate(text, seed=7, retry_badcase=False)).tobytes() for text in (LONG, SHORT)
        }


def asked(text: str) -> dict[str, Any]:
    return {"json": {"model": "tts-1", "input": text, "response_format": "pcm", "seed": 7}, "timeout": 120}


def test_a_node_that_is_killed_costs_what_it_was_speaking_and_its_replica_comes_back_on_another(
    url: str, cluster: Any, nodes: list[Any], expected: dict[str, bytes]
) -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(4) as threads:
        streams = []
        for _ in range(4):
            answer = stack.enter_context(httpx2.stream("POST", f"{url}/v1/audio/speech", **asked(LONG)))
            parts = answer.iter_raw()
            streams.append((next(parts), parts))

        def rest(first: bytes, parts: Iterator[bytes]) -> bytes | None:
            """The whole answer; None for one without its end."""
            try:
                return first + b"".join(parts)
            except httpx2.TransportError:
                return None

        reading = [threads.submit(rest, *stream) for stream in streams]
        cluster.remove_node(nodes.pop(), allow_graceful=False)
        heard = [each.result() for each in reading]
    # Both nodes spoke; what the other one spoke is whole.
    assert set(heard) == {None, expected[LONG]}

    def spoken() -> bytes:
        answer = httpx2.post(f"{url}/v1/audio/speech", **asked(SHORT))
        return answer.content if answer.status_code == 200 else b""

    # By the one that is left, and from then on always.
    until(lambda: spoken() == expected[SHORT], 60)
    assert {spoken() for _ in range(5)} == {expected[SHORT]}

    nodes.append(cluster.add_node(num_cpus=1))
    until(lambda: [len(replicas(node)) for node in nodes] == [1, 1], 90)
    (back,) = replicas(nodes[-1])

    def both_work() -> bool:
        before = back.cpu_times().user
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(lambda _: spoken(), range(4))) == {expected[SHORT]}
        return back.cpu_times().user > before + 0.2

    until(both_work, 90)
