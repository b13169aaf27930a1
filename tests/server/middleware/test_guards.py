"""API keys, loopback, cross-origin requests; bodies that are malformed, too large, too slow, or in another charset."""

import asyncio
import contextlib
import socket
import time

import anyio
import httpx2
import openai
import pytest

from server_on_loopback import post, raw_answer
from voxcpm_runtime import InputError
from voxcpm_server.application import create_app
from voxcpm_server.errors import ApiError
from voxcpm_server.middleware.authentication import Keys, read_keys
from voxcpm_server.middleware.limits import BodyLimitMiddleware
from voxcpm_server.rooms import AllSettings as Settings

SAID = {"model": "tts-1", "voice": "alloy", "input": "Hello."}


def test_keys_are_required(serve):
    running = serve(keys=("first", "second"))
    for key in ("first", "second"):
        assert running.client(key).models.list()
    for key in ("third", "firs", "first "[:5] + "x"):
        with pytest.raises(openai.AuthenticationError) as caught:
            running.client(key).audio.speech.create(model="tts-1", voice="alloy", input="Hello.")
        assert caught.value.code == "invalid_api_key"
    assert running.get("/metrics").status_code == 401
    assert running.get("/v1/models").headers["www-authenticate"] == "Bearer"
    for path in ("/healthz", "/ready", "/openapi.json"):
        assert running.get(path).status_code == 200


def test_keys_are_read_from_options_file_and_environment(tmp_path, monkeypatch):
    (tmp_path / "keys").write_text("# ours\n  # and indented\nfrom-file\n\n")
    monkeypatch.setenv("VOXCPM_COREML_API_KEYS", "from-environment, and-another")
    keys = read_keys(Settings(api_key=["given"], api_key_file=tmp_path / "keys"))
    owners = [keys.owner(key) for key in ("given", "from-file", "from-environment", "and-another")]
    assert None not in owners
    assert len(set(owners)) == 4
    assert keys.owner("# ours") is None
    assert keys.owner("# and indented") is None
    assert keys.owner(None) is None
    (tmp_path / "keys").write_text("# none\n")
    with pytest.raises(InputError, match="found none"):
        read_keys(Settings(api_key_file=tmp_path / "keys"))


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "192.168.1.7", "", "localhost.example.org", "127.0.0.1.example.org"],  # noqa: S104
)
def test_without_keys_only_loopback_is_allowed(host, tts):
    with pytest.raises(InputError, match="--insecure-serve-without-key"):
        create_app(tts, Settings(host=host), Keys(()))
    for loopback in ("127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"):
        create_app(tts, Settings(host=loopback), Keys(()))
    create_app(tts, Settings(host=host), Keys(("key",)))
    create_app(tts, Settings(host=host, insecure_serve_without_key=True), Keys(()))


def test_foreign_origins_are_rejected(serve):
    running = serve()
    body = {"json": SAID, "timeout": 60}

    def status(**headers):
        return running.post("/v1/audio/speech", headers=headers, **body).status_code

    assert status() == 200
    assert status(Origin=running.url) == 200
    assert status(Origin="https://example.org") == 403
    assert status(Origin="http://[") == 403
    # DNS rebinding: a foreign name that resolves to this machine.
    assert status(Host="example.org", Origin="http://example.org") == 403
    assert "access-control-allow-origin" not in running.get("/v1/models").headers


def test_cross_site_media_requests_are_rejected(serve):
    """Browsers send no Origin for images and sounds, but Sec-Fetch-Site."""
    running = serve(cors_origin=["https://example.org"])
    foreign = {"Sec-Fetch-Site": "cross-site"}

    def status(path, **headers):
        return running.get(path, headers={**foreign, **headers}).status_code

    assert status("/v1/audio/voices/default/preview") == 403
    assert status("/v1/models") == 403
    assert status("/v1/models", Origin="https://example.org") == 200
    assert status("/v1/models", **{"Sec-Fetch-Site": "same-origin"}) == 200
    # Paths that need no key, such as probes.
    for path in ("/healthz", "/v1/about"):
        assert status(path) == 200


def test_cors_allows_the_clients_headers(serve):
    running = serve(cors_origin=["https://example.org"])
    client = running.client()
    # Headers of OpenAI's client in a browser, and ElevenLabs' key.
    headers = {*map(str.lower, client.default_headers), "x-stainless-retry-count", "range", "xi-api-key"}
    assert "x-stainless-os" in headers
    asked = {
        "Origin": "https://example.org",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": ",".join(sorted(headers)),
    }
    allowed = running.options("/v1/audio/speech", headers=asked)
    assert allowed.status_code == 200, allowed.text
    assert allowed.headers["access-control-allow-origin"] == "https://example.org"
    assert headers <= set(allowed.headers["access-control-allow-headers"].split(","))
    answer = running.get("/v1/models", headers={"Origin": "https://example.org"})
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    assert "Content-Range" in answer.headers["access-control-expose-headers"]
    assert running.get("/v1/models", headers={"Origin": "https://a.org"}).status_code == 403
    foreign = running.options("/v1/audio/speech", headers=asked | {"Origin": "https://a.org"})
    assert foreign.status_code == 400


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_invalid_json_body(body, server):
    answer = server.post("/v1/audio/speech", content=body, headers={"Content-Type": "application/json"})
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
    answer = server.post("/v1/audio/speech", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert "charset" not in answer.text


def test_oversized_content_length_is_rejected_before_the_body(server):
    answer = raw_answer(server.address, post(2_000_000_000, path="/v1/audio/voices"))
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
        answer = running.post("/v1/audio/speech", content=endless())
        assert answer.status_code == 413
    assert taken < 100 * 65_536
    assert running.get("/healthz").status_code == 200


FORM = "multipart/form-data; boundary=x"


def form(size):
    """A form of that many bytes with an invalid recording."""
    start = b'--x\r\nContent-Disposition: form-data; name="prompt_audio"; filename="a.wav"\r\n\r\n'
    end = b"\r\n--x--\r\n"
    return start + b" " * (size - len(start) - len(end)) + end


@pytest.mark.anyio
async def test_form_counts_until_answered_except_for_its_first_64_kib():
    uncounted = 65_536
    # Together exactly the total limit, without the uncounted bytes.
    held = (200_000, 200_000, 300_000 - 2 * (200_000 - uncounted) + uncounted)

    read = []
    may_end = asyncio.Event()

    async def app(scope, receive, _):
        while (await receive())["more_body"]:
            pass
        read.append(scope["path"])
        if scope["path"] == "/slow":
            await may_end.wait()

    bounded = BodyLimitMiddleware(app, settings=Settings(max_upload_megabytes=0.2, max_bodies_megabytes=0.3))

    async def sent(path, size):
        parts = [form(size)[at : at + 10_000] for at in range(0, size, 10_000)]

        async def receive():
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        scope = {"type": "http", "path": path, "headers": [(b"content-type", FORM.encode())]}
        await bounded(scope, receive, lambda _: asyncio.sleep(0))

    slow = [asyncio.create_task(sent("/slow", size)) for size in held]
    with anyio.fail_after(20):
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


def test_total_body_limit_is_at_least_the_limit_per_body(serve):
    with pytest.raises(InputError, match="expected at least --max-upload-megabytes 25, got 24"):
        serve(max_bodies_megabytes=24)


def test_stalled_body_times_out(serve):
    running = serve(client_timeout=0.3)
    answer = raw_answer(running.address, post(50) + b"{")
    assert answer.startswith(b"HTTP/1.1 408"), answer
    assert b"the body stalled" in answer


def test_trickled_body_times_out(serve):
    running = serve(client_timeout=1)
    with socket.create_connection(running.address, timeout=0.05) as connection:
        connection.sendall(post(5000))
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
    kind = f"Content-Type: multipart/form-data; boundary=x; charset={charset}"
    answer = raw_answer(server.address, post(200_000, kind, path="/v1/audio/voices"))
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert b"expected the charset utf-8" in answer
