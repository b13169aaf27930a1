"""Many at once: silent connections, large bodies, turns that nobody takes. No test here needs a bundle."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from server_on_loopback import ServerOnLoopback
from voxcpm_server.errors import CLIENT_GONE, ApiError
from voxcpm_server.speech.speech_answers import StreamedResponse
from waiting import until

Serving = Callable[..., ServerOnLoopback]
SAID = {"model": "tts-1", "input": "Hello."}


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(10)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65_536):
            pass
    return True


def test_silent_connections_are_closed(without_bundle: Serving) -> None:
    running = without_bundle(client_timeout=1)
    asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with contextlib.ExitStack() as guests:
        for sent in (b"", asked[:20], asked, asked + asked[:20]):
            connection = guests.enter_context(socket.create_connection(running.address))
            connection.sendall(sent)
            assert is_closed(connection), sent


def test_one_request_too_many_is_told_when_to_come_again_and_probes_are_answered(
    without_bundle: Serving,
) -> None:
    running = without_bundle(max_connections=1)
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    with socket.create_connection(running.address) as unfinished:
        unfinished.sendall(head)

        def refusal() -> httpx2.Response | None:
            answer = httpx2.get(f"{running.url}/v1/audio/voices")
            return answer if answer.status_code == 503 else None

        # On a busy machine a hundred requests were answered before the server had read what is unfinished.
        refused = until(refusal)
        assert refused is not None
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        assert httpx2.get(f"{running.url}/healthz").status_code == 200
        assert httpx2.get(f"{running.url}/metrics").status_code == 200


def test_a_full_queue_refuses_a_request_before_its_body_is_read(
    without_bundle: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = without_bundle()

    def full(_: str) -> None:
        raise ApiError(503, "full", headers={"Retry-After": "1"})

    monkeypatch.setattr(running.service.queue, "check", full)
    with socket.create_connection(running.address, timeout=20) as connection:
        connection.sendall(
            b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 503 ")


def test_an_answer_whose_first_bytes_nobody_takes_is_given_up() -> None:
    ended = []

    # It is never asked for a part, so what it would do at its end is not done.
    async def parts() -> AsyncGenerator[bytes, None]:
        yield b"a"

    async def end() -> None:
        ended.append(True)

    async def never(*_: object) -> Any:
        await asyncio.Event().wait()

    async def answered() -> int:
        scope: dict[str, Any] = {"type": "http"}
        response = StreamedResponse(parts(), SimpleNamespace(aclose=end), "audio/pcm", {}, 0.05)
        await asyncio.wait_for(response(scope, never, never), 10)
        return scope["state"]["broken_off"]

    assert asyncio.run(answered()) == CLIENT_GONE
    assert ended == [True]


def test_a_thread_that_cannot_start_gives_its_turn_back(
    serve: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = serve(concurrency=1)
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "speech":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        assert httpx2.post(f"{running.url}/v1/audio/speech", json=SAID).status_code == 500
    assert httpx2.post(f"{running.url}/v1/audio/speech", json=SAID, timeout=60).status_code == 200
    until(lambda: running.service.queue.busy == running.service.bundles.default.users == 0)
