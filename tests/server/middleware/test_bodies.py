"""Request bodies that are malformed, too large, too slow, or in another charset."""

import asyncio
import contextlib
import socket
import time

import httpx2
import pytest

from server_on_loopback import raw_answer
from voxcpm_runtime import InputError
from voxcpm_server.errors import ApiError
from voxcpm_server.middleware.limits import BodyLimitMiddleware
from voxcpm_server.rooms import AllSettings as Settings


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_invalid_json_body(body, server):
    answer = httpx2.post(
        f"{server.url}/v1/audio/speech", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["message"], error["param"]) == ("body: expected a JSON object", None)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="a"\r\n'),
        ("multipart/form-data", b"--x\r\n"),
        ("text/plain", b"nothing"),
        ("", b"nothing"),
        ("multipart/form-data; boundary=x; charset=utf-8", b""),
    ],
)
def test_invalid_form_body(kind, body, server):
    answer = httpx2.post(f"{server.url}/v1/audio/speech", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert "charset" not in answer.text


def test_oversized_content_length_is_rejected_before_the_body(server):
    head = "POST /v1/audio/voices HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000000\r\n\r\n"
    answer = raw_answer(server.address, head.encode())
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"at most 25 MB, got 2000000000 bytes" in answer


def test_chunked_body_is_limited(serve):
    running = serve(max_upload_megabytes=0.1)
    taken = 0

    def endless():
        nonlocal taken
        for _ in range(100):
            taken += 65_536
            yield b" " * 65_536

    # The server may close the connection while the client is sending.
    with contextlib.suppress(httpx2.TransportError):
        answer = httpx2.post(f"{running.url}/v1/audio/speech", content=endless(), timeout=20)
        assert answer.status_code == 413
    assert taken < 100 * 65_536
    assert httpx2.get(f"{running.url}/healthz").status_code == 200


FORM = "multipart/form-data; boundary=x"


def form(size):
    """A form of that many bytes with an invalid recording."""
    start = b'--x\r\nContent-Disposition: form-data; name="prompt_audio"; filename="a.wav"\r\n\r\n'
    end = b"\r\n--x--\r\n"
    return start + b" " * (size - len(start) - len(end)) + end


def test_form_counts_until_answered_except_for_its_first_64_kib():
    uncounted = 65_536
    # Together exactly the total limit, without the uncounted bytes.
    held = (200_000, 200_000, 300_000 - 2 * (200_000 - uncounted) + uncounted)

    async def scenario():
        read = []
        may_end = asyncio.Event()

        async def app(scope, receive, _):
            while (await receive())["more_body"]:
                pass
            read.append(scope["path"])
            if scope["path"] == "/slow":
                await may_end.wait()

        bounded = BodyLimitMiddleware(
            app, settings=Settings(max_upload_megabytes=0.2, max_bodies_megabytes=0.3)
        )

        async def sent(path, size):
            parts = [form(size)[at : at + 10_000] for at in range(0, size, 10_000)]

            async def receive():
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

            scope = {"type": "http", "path": path, "headers": [(b"content-type", FORM.encode())]}
            await bounded(scope, receive, lambda _: asyncio.sleep(0))

        slow = [asyncio.create_task(sent("/slow", size)) for size in held]
        while len(read) < len(held):
            await asyncio.sleep(0)
        await sent("/quick", uncounted)
        with pytest.raises(ApiError, match=r"exceed 0\.3 MB in total") as refused:
            await sent("/quick", uncounted + 1)
        assert refused.value.status_code == 503
        assert refused.value.headers == {"Connection": "close", "Retry-After": "5"}
        may_end.set()
        await asyncio.gather(*slow)
        await sent("/quick", 200_000)
        with pytest.raises(ApiError, match=r"at most 0\.2 MB, got more than 200000 bytes"):
            await sent("/quick", 200_001)

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_total_body_limit_is_at_least_the_limit_per_body(serve):
    with pytest.raises(InputError, match="expected at least --max-upload-megabytes 25, got 24"):
        serve(max_bodies_megabytes=24)


def test_stalled_body_times_out(serve):
    running = serve(client_timeout=0.3)
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
    answer = raw_answer(running.address, head)
    assert answer.startswith(b"HTTP/1.1 408"), answer
    assert b"the body stalled" in answer


def test_trickled_body_times_out(serve):
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
        # Bytes sent after the response may cause a reset once it is read.
        with contextlib.suppress(ConnectionResetError):
            while answer and (part := connection.recv(65_536)):
                answer += part

    assert answer.startswith(b"HTTP/1.1 408"), answer
    assert b"expected 10000 bytes/s" in answer


@pytest.mark.parametrize("charset", ['"PUNYCODE"', "utf-16"])
def test_form_in_another_charset_is_rejected_unread(charset, server):
    """Python's punycode codec takes quadratic time and would block the event loop."""
    head = (
        "POST /v1/audio/voices HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n"
        f"Content-Type: multipart/form-data; boundary=x; charset={charset}\r\n\r\n"
    )
    answer = raw_answer(server.address, head.encode())
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert b"expected the charset utf-8" in answer
