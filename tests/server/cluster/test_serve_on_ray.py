"""`serve --ray`: replicas of Ray Serve stream the same samples as a plain server."""

import contextlib
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx2
import psutil
import pytest

from voxcpm_runtime import VoxCPM
from voxcpm_runtime.audio.pcm import pcm16
from waiting import until

Start = Callable[..., subprocess.Popen[str]]
LONG = "one two three four five six seven. " * 8
SHORT = "One two three."
# A stream cannot repair what it has handed out, so with every word once a whole speech of a refrain may differ.
BODY = {"model": "tts-1", "input": LONG, "response_format": "pcm", "seed": 7, "every_word": False}


@pytest.fixture
def serve(bundle, started, listening, tmp_path):
    """serve(*options): a server on a new cluster of this machine, and its URL."""

    def begin(*options):
        voices = ("--voices-folder", tmp_path / "voices")
        process = started("serve", bundle, "--ray", "--port", 0, "--threads", 1, *voices, *options)
        return process, listening(process)

    return begin


def replicas_below(pid):
    """The replicas among the processes below that one."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "ServeReplica" in " ".join(process.cmdline()):
                found.append(process)
    return found


def _spoken(url):
    return httpx2.post(f"{url}/v1/audio/speech", json=BODY, timeout=120).content


@pytest.fixture(scope="module")
def spoken_alone(bundle):
    """The expected samples of every response: those of a plain server."""
    with VoxCPM.from_bundle(bundle, threads=1) as tts:
        return {
            text: pcm16(tts.generate(text, seed=7, retry_badcase=False, every_word=False)).tobytes()
            for text in (LONG, SHORT)
        }


def test_one_replica_equals_a_plain_server(serve, spoken_alone):
    process, url = serve()
    # The first bytes arrive long before the end.
    began = time.perf_counter()
    with httpx2.stream("POST", f"{url}/v1/audio/speech", json=BODY, timeout=60) as answer:
        parts = answer.iter_raw()
        received = next(parts)
        first = time.perf_counter() - began
        received += b"".join(parts)
    assert answer.headers["x-seed"] == "7"
    assert received == spoken_alone[LONG]
    assert first < (time.perf_counter() - began) / 2
    # Errors come from the app; what a single replica cannot know is rejected.
    unknown = httpx2.post(f"{url}/v1/audio/speech", json=BODY | {"voice": "nobody"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "voice")
    metrics = httpx2.get(f"{url}/metrics")
    assert (metrics.status_code, "--ray" in metrics.json()["error"]["message"]) == (501, True)
    assert httpx2.get(f"{url}/v1/models", headers={"Host": "evil.example"}).status_code == 403
    # Disconnecting frees the slot.
    with httpx2.stream(
        "POST", f"{url}/v1/audio/speech", json=BODY | {"input": LONG * 8}, timeout=60
    ) as answer:
        # Keep a reference: closing the iterator closes the response.
        parts = answer.iter_raw()
        next(parts)
        assert httpx2.get(f"{url}/ready").json()["speaking"] == 1
    until(lambda: httpx2.get(f"{url}/ready").json()["speaking"] == 0, 5)
    # SIGTERM drains.
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(_spoken, url)
        until(lambda: httpx2.get(f"{url}/ready").json()["speaking"] == 1, 10)
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)[1]
    assert (process.returncode, rest.strip()) == (0, "")
    assert asking.result() == spoken_alone[LONG]


def test_replicas_are_added_under_load(serve, spoken_alone):
    process, url = serve("--replicas", 1, "--max-replicas", 2, "--concurrency", 1)
    assert len(replicas_below(process.pid)) == 1
    stop = threading.Event()

    def ask():
        answers = set()
        while not stop.is_set():
            answers.add(_spoken(url))
        return answers

    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(ask) for _ in range(4)]
        try:
            until(lambda: len(replicas_below(process.pid)) == 2, 120)
        finally:
            stop.set()
        assert set().union(*(answers.result() for answers in asking)) == {spoken_alone[LONG]}


def test_unsupported_cluster_options_are_one_line_errors(bundle, cluster, started, tmp_path):
    there = ("--ray", "--ray-address", cluster.address)
    for options, words in (
        ((*there,), "requires --voices-folder"),
        ((*there, "--voices-folder", tmp_path, "--port", 0), "expected a fixed port"),
        ((*there, "--bundle", "a=b"), "--bundle is not supported with --ray"),
        ((*there, "--idle-unload", "10m"), "--idle-unload is not supported with --ray"),
        (("--ray", "--replicas", 10_000), "replicas need 10000 CPUs"),
        (("--ray", "--ray-address", "127.0.0.1:1"), "cannot connect"),
        (("--replicas", 2), "need --ray"),
        (("--ray", "--replicas", 4, "--max-replicas", 2), "at least --replicas 4"),
    ):
        process = started("serve", bundle, *options)
        printed, errors = process.communicate(timeout=150)
        assert (process.returncode, printed) == (2, ""), errors
        (line,) = (line for line in errors.splitlines() if not line.endswith("…"))
        assert line.startswith("error: ")
        assert words in line


def replicas(node):
    """The replica processes on a node."""
    (raylet,) = node.all_processes["raylet"]
    return replicas_below(raylet.process.pid)


@pytest.fixture
def url(bundle, cluster, nodes, started, listening, tmp_path):
    """A server with two replicas, one per node, as each needs the node's only CPU."""
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


def asked(text):
    return {"json": BODY | {"input": text}, "timeout": 120}


def test_killed_node_loses_only_its_requests_and_its_replica_restarts_elsewhere(
    url, bundle, cluster, nodes, started, spoken_alone, tmp_path
):
    there = ("--ray", "--ray-address", cluster.address, "--voices-folder", tmp_path)
    second = started("serve", bundle, *there, "--port", 1)
    assert "Ray Serve already runs" in second.communicate(timeout=150)[1]
    assert second.returncode == 2

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(4) as threads:
        streams = []
        for _ in range(4):
            answer = stack.enter_context(httpx2.stream("POST", f"{url}/v1/audio/speech", **asked(LONG)))
            parts = answer.iter_raw()
            streams.append((next(parts), parts))

        def rest(first, parts):
            """The whole response; None if it was truncated."""
            try:
                return first + b"".join(parts)
            except httpx2.TransportError:
                return None

        reading = [threads.submit(rest, *stream) for stream in streams]
        cluster.remove_node(nodes.pop(), allow_graceful=False)
        heard = [each.result() for each in reading]
    # Both nodes spoke; the surviving node's responses are complete.
    assert set(heard) == {None, spoken_alone[LONG]}

    def spoken():
        answer = httpx2.post(f"{url}/v1/audio/speech", **asked(SHORT))
        return answer.content if answer.status_code == 200 else b""

    # The surviving node serves all requests from then on.
    until(lambda: spoken() == spoken_alone[SHORT], 60)
    assert {spoken() for _ in range(5)} == {spoken_alone[SHORT]}

    nodes.append(cluster.add_node(num_cpus=1))
    until(lambda: [len(replicas(node)) for node in nodes] == [1, 1], 90)
    (back,) = replicas(nodes[-1])

    def both_work():
        before = back.cpu_times().user
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(lambda _: spoken(), range(4))) == {spoken_alone[SHORT]}
        return back.cpu_times().user > before + 0.2

    until(both_work, 90)
