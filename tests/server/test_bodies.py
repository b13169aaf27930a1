"""Bodies of requests that are no requests, too large, too slow, or in another charset."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from voxcpm_runtime import InputError


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_request(body: bytes, server: Any) -> None:
    answer = httpx2.post(
        f"{server.url}/v1/audio/speech", content=body, headers={"Content-Type": "application/json"}
    )

    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "body", [b"", b"--x\r\n", b"nothing", b'--x\r\nContent-Disposition: form-data; name="a"\r\n']
)
@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "multipart/form-data", "text/plain", ""])
def test_a_body_that_is_no_form(body: bytes, kind: str, server: Any) -> None:
    answer = httpx2.post(f"{server.url}/v1/audio/speech", content=body, headers={"Content-Type": kind})

    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def raw_answer(address: tuple[str, int], request: bytes) -> bytes:
    """All that the server says until it closes the connection."""
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(request)
        parts = []
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    "head",
    [
        "no request\r\n\r\n",
        f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: {'9' * 30}\r\n\r\n",
    ],
)
def test_what_is_no_http_is_answered_in_the_shape_of_errors(head: str, server: Any) -> None:
    answer, _, body = raw_answer(server.address, head.encode()).partition(b"\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in answer.lower()
    error = json.loads(body)["error"]
    assert error == {**error, "type": "invalid_request_error", "param": None, "code": None}
    assert error["message"]


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/voices"])
def test_two_gigabytes_are_refused_at_their_header(path: str, server: Any) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000000\r\n\r\n"

    answer = raw_answer(server.address, head.encode())

    assert answer.startswith(b"HTTP/1.1 413")
    assert b"at most 25 MB, got 2000000000 bytes" in answer


def test_a_body_that_does_not_say_its_size_is_counted(serve: Callable[..., Any]) -> None:
    running = serve(max_upload_megabytes=0.1)
    taken = 0

    def endless() -> Any:
        nonlocal taken
        for _ in range(100):
            taken += 65_536
            yield b" " * 65_536

    # The server may close the connection while the client still sends.
    with contextlib.suppress(httpx2.TransportError):
        answer = httpx2.post(f"{running.url}/v1/audio/speech", content=endless(), timeout=20)
        assert answer.status_code == 413
    assert taken < 100 * 65_536
    assert httpx2.get(f"{running.url}/healthz").status_code == 200


def test_bodies_are_bounded_together(serve: Callable[..., Any]) -> None:
    """Several uploads that are never complete take up what all may have; then texts still pass, and more uploads
    once those have gone away.
    """
    running = serve(max_upload_megabytes=0.3, max_bodies_megabytes=0.5)
    json_type = {"Content-Type": "application/json"}
    head = (
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 290000\r\n\r\n"
    )

    def large() -> httpx2.Response:
        answer = httpx2.post(
            f"{running.url}/v1/audio/speech", content=b" " * 280_000, headers=json_type, timeout=20
        )
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        return answer

    with contextlib.ExitStack() as stack:

        def large_beside_others() -> httpx2.Response:
            # One of these may itself be what goes beyond, while the large one is read: then the next try has more.
            for _ in range(2):
                connection = stack.enter_context(socket.create_connection(running.address, timeout=20))
                connection.sendall(head + b" " * 285_000)
            return large()

        refused = until(large_beside_others, lambda answer: answer.status_code == 503)
        said = {"model": "tts-1", "voice": "alloy", "input": "Hello."}
        spoken = httpx2.post(f"{running.url}/v1/audio/speech", json=said, timeout=60)
    assert refused.headers["retry-after"] == "5"
    assert "larger than 0.5 MB together" in refused.json()["error"]["message"]
    assert spoken.status_code == 200
    # It is read now, and no request.
    until(large, lambda answer: answer.status_code == 400)


def until(ask: Callable[[], httpx2.Response], right: Callable[[httpx2.Response], bool]) -> httpx2.Response:
    """The first answer that is right, within some seconds: what others send and close arrives in its own time."""
    end = time.monotonic() + 20
    while not right(answer := ask()):
        assert time.monotonic() < end, answer.text
        time.sleep(0.05)
    return answer


def test_all_bodies_together_may_not_be_less_than_one(serve: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="expected at least --max-upload-megabytes 25, got 24"):
        serve(max_bodies_megabytes=24)


def test_a_body_that_stalls_is_given_up(serve: Callable[..., Any]) -> None:
    running = serve(client_timeout=0.3)
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"

    answer = raw_answer(running.address, head)

    assert answer.startswith(b"HTTP/1.1 408"), answer
    assert b"no more of the body came" in answer


def test_a_body_that_trickles_is_given_up(serve: Callable[..., Any]) -> None:
    running = serve(client_timeout=1)
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n"

    with socket.create_connection(running.address, timeout=0.05) as connection:
        connection.sendall(head)
        answer, until = b"", time.monotonic() + 20
        while not answer and time.monotonic() < until:
            connection.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(65_536)
        connection.settimeout(20)
        # What was sent after the answer may be met by a reset, once the answer is read.
        with contextlib.suppress(ConnectionResetError):
            while answer and (part := connection.recv(65_536)):
                answer += part

    assert answer.startswith(b"HTTP/1.1 408"), answer
    assert b"expected 10000 bytes of the body a second" in answer


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/voices"])
@pytest.mark.parametrize("charset", ["punycode", '"PUNYCODE"', "utf-16"])
def test_a_form_in_another_charset_is_refused_unread(path: str, charset: str, server: Any) -> None:
    """Python's punycode takes time that grows with the square of the length, and would hold up everyone."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n"
        f"Content-Type: multipart/form-data; boundary=x; charset={charset}\r\n\r\n"
    )

    answer = raw_answer(server.address, head.encode())

    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert b"expected the charset utf-8" in answer


def test_a_form_may_say_that_it_is_utf_8(server: Any) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="speed"\r\n\r\nfast\r\n--x--\r\n'
    kind = 'multipart/form-data; boundary=x; charset="UTF-8"'

    answer = httpx2.post(f"{server.url}/v1/audio/speech", content=body, headers={"Content-Type": kind})

    assert "charset" not in answer.json()["error"]["message"]
