"""The queue as clients see it: limits, disconnects and timeouts."""

import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable

import httpx2
import numpy as np
import openai
import pytest

from server_on_loopback import ServerOnLoopback, post
from voxcpm_runtime import CancelToken, InputError
from voxcpm_runtime.audio.pcm import pcm16
from voxcpm_server.errors import ApiError
from waiting import until

LONG = "one two three four five six seven eight nine ten, and on we go. " * 20
EVENTS = {"model": "tts-1", "input": "Hello.", "response_format": "pcm", "stream_format": "sse", "seed": 7}
Serving = Callable[..., ServerOnLoopback]
JSON = "Content-Type: application/json"


@contextlib.contextmanager
def speaking(running, key="none"):
    """A long speech whose first bytes have arrived."""
    given = {"model": "tts-1", "voice": "alloy", "input": LONG, "response_format": "pcm"}
    with running.client(key).audio.speech.with_streaming_response.create(**given) as answer:
        # Keep a reference: closing the iterator closes the connection.
        parts = answer.iter_bytes(64)
        next(parts)
        yield parts


def outcomes(running):
    samples = next(iter(running.service.metrics.speeches.collect())).samples
    return {s.labels["outcome"]: s.value for s in samples if s.name.endswith("_total")}


def test_first_audio_seconds_start_with_the_request(serve):
    running, body = serve(), json.dumps({"model": "tts-1", "input": "Hi.", "response_format": "pcm"}).encode()
    with socket.create_connection(running.address, timeout=60) as connection:
        connection.sendall(post(len(body), JSON, "Connection: close"))
        time.sleep(1.5)
        connection.sendall(body)
        with connection.makefile("rb") as answer:
            assert b" 200 " in answer.readline()
            answer.read()
    samples = next(iter(running.service.metrics.first_audio.collect())).samples
    # A busy machine may read the head late.
    assert next(sample.value for sample in samples if sample.name.endswith("_sum")) > 1


def test_disconnecting_ends_the_speech_within_one_euler_step(serve, euler_steps, monkeypatch):
    running = serve(concurrency=1)
    at_cancellation = []
    cancel = CancelToken.cancel

    def noted(token):
        at_cancellation.append(euler_steps.calls)
        cancel(token)

    monkeypatch.setattr(CancelToken, "cancel", noted)
    with speaking(running):
        assert running.service.queue.busy == 1
    until(lambda: running.service.queue.busy == 0)
    # The call running at the cancellation may be counted before or after.
    assert euler_steps.calls <= at_cancellation[0] + 1
    assert outcomes(running) == {"cancelled": 1}
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "speech"])
    counted = 'voxcpm_requests_total{route="/audio/speech",status="499"} 1.0'
    until(lambda: counted in running.metrics())


def test_disconnecting_before_the_first_audio_ends_the_speech(serve, euler_steps):
    running = serve(concurrency=1)
    euler_steps.go = threading.Event()
    body = json.dumps({"model": "tts-1", "voice": "alloy", "input": LONG}).encode()
    with socket.create_connection(running.address) as client:
        client.sendall(post(len(body), JSON) + body)
        until(lambda: euler_steps.calls)
    calls = euler_steps.calls
    time.sleep(0.2)
    euler_steps.go.set()
    until(lambda: running.service.queue.busy == 0)
    assert euler_steps.calls <= calls + 1
    assert outcomes(running) == {"cancelled": 1}


def test_full_queue_is_503_and_too_many_per_key_429(serve):
    running = serve(keys=("a", "b", "c"), concurrency=1, queue=2, queue_per_key=1)
    given = {"model": "tts-1", "voice": "alloy", "input": "Hello.", "response_format": "pcm"}
    served = []

    def ask(key):
        running.client(key).audio.speech.create(**given)
        served.append(key)

    with speaking(running, "a"):
        waiting = [threading.Thread(target=ask, args=(key,)) for key in ("a", "b")]
        # One of two places is taken, and a key has one; then both are.
        for number, (refused, key, status) in enumerate(
            ((openai.RateLimitError, "a", 429), (openai.InternalServerError, "c", 503))
        ):
            waiting[number].start()
            until(lambda number=number: running.service.queue.waiting == number + 1)
            with pytest.raises(refused) as caught:
                running.client(key).audio.speech.create(**given)
            assert caught.value.status_code == status
            assert int(caught.value.response.headers["retry-after"]) >= 1
    for thread in waiting:
        thread.join(30)
    assert served == ["a", "b"]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("voxcpm_server.speech.speech_responses._SILENT_SECONDS", 0.2)


@pytest.mark.usefixtures("impatient")
def test_events_report_queueing(serve, tts):
    running = serve(concurrency=1, queue=1)
    url, lines = f"{running.url}/v1/audio/speech", []
    with contextlib.ExitStack() as asked:
        with speaking(running):
            # Early rejections still have a status.
            assert httpx2.post(url, json={**EVENTS, "cfg_value": 99}).status_code == 400
            answer = asked.enter_context(httpx2.stream("POST", url, json=EVENTS))
            assert (answer.status_code, answer.headers["x-seed"]) == (200, "7")
            rest = answer.iter_lines()
            assert [next(rest) for _ in range(4)] == [": waiting", ""] * 2
            assert httpx2.post(url, json=EVENTS).status_code == 503
        lines += [line.removeprefix("data: ") for line in rest if line.startswith("data: ")]
    audio = b"".join(base64.b64decode(json.loads(line).get("audio", "")) for line in lines[:-1])
    assert lines[-1] == "[DONE]"
    assert np.array_equal(
        np.frombuffer(audio, "<i2"), pcm16(tts.speak("Hello.", seed=7, retry_badcase=False).audio)
    )


@pytest.mark.usefixtures("impatient")
def test_error_after_queueing_is_an_event_and_is_counted(serve, tts, monkeypatch):
    running = serve()

    def late(*_, **__):
        time.sleep(0.7)
        raise InputError("it is late")
        yield

    monkeypatch.setattr(tts, "stream_plan", late)
    lines = []
    url = f"{running.url}/v1/audio/speech"
    with pytest.raises(httpx2.RemoteProtocolError), httpx2.stream("POST", url, json=EVENTS) as answer:
        lines.extend(answer.iter_lines())
    assert lines[0] == ": waiting"
    assert "it is late" in next(line for line in lines if line.startswith("data: "))
    counted = 'voxcpm_requests_total{route="/audio/speech",status="400"} 1.0'
    until(lambda: counted in running.metrics())
    until(lambda: running.service.bundles.default.leases == 0)


@pytest.mark.long
def test_stalled_reader_pauses_the_speech_and_times_out(serve, euler_steps):
    running = serve(concurrency=1, buffer_seconds=1, client_timeout=10)

    def paused():
        calls = euler_steps.calls
        time.sleep(0.5)
        return bool(calls) and euler_steps.calls == calls and running.service.queue.busy == 1

    asked = {"model": "tts-1", "input": LONG, "response_format": "wav", "sample_rate": 48_000}
    body = json.dumps(asked).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(running.address)
        connection.sendall(post(len(body), JSON) + body)
        until(paused)
        calls = euler_steps.calls
        until(lambda: bool(outcomes(running)))
    assert outcomes(running) == {"cancelled": 1}
    assert euler_steps.calls == calls


def is_closed(connection):
    connection.settimeout(10)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65_536):
            pass
    return True


def test_idle_connections_are_closed(without_bundle):
    running = without_bundle(client_timeout=1)
    asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    cases = ((b"", b""), (asked[:20], b""), (asked, b""), (asked, asked[:20]))
    with contextlib.ExitStack() as guests:
        # All wait for the same second.
        connections = []
        for sent, later in cases:
            connection = guests.enter_context(socket.create_connection(running.address))
            connection.sendall(sent)
            if later:
                assert connection.recv(65_536)
                connection.sendall(later)
            connections.append(connection)
        for connection, case in zip(connections, cases, strict=True):
            assert is_closed(connection), case


def test_excess_requests_get_retry_after_and_probes_still_respond(without_bundle):
    running = without_bundle(max_connections=1)
    with socket.create_connection(running.address) as unfinished:
        unfinished.sendall(post(9))

        def refusal():
            answer = running.get("/v1/audio/voices")
            return answer if answer.status_code == 503 else None

        # On a busy machine a hundred requests were answered before the server had read what is unfinished.
        refused = until(refusal)
        assert refused is not None
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        assert running.get("/healthz").status_code == 200
        assert running.get("/metrics").status_code == 200
    voices = f"{running.url}/v1/audio/voices"
    until(lambda: httpx2.get(voices).json()["error"]["code"] == "model_unavailable")


def test_full_queue_rejects_requests_before_reading_the_body(without_bundle, monkeypatch):
    running = without_bundle()

    def full(_):
        raise ApiError(503, "full", headers={"Retry-After": "1"})

    monkeypatch.setattr(running.service.queue, "check", full)
    with socket.create_connection(running.address, timeout=20) as connection:
        connection.sendall(post(100_000))
        assert connection.recv(100).startswith(b"HTTP/1.1 503 ")
