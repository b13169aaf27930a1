"""What the server refuses, and that it says so on one line in OpenAI's shape."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import soundfile

from voxcpm_runtime import BundleError, DeviceError, InputError
from voxcpm_server.application import create_app
from voxcpm_server.authentication import Keys, is_loopback, read_keys
from voxcpm_server.errors import ApiError
from voxcpm_server.recordings import decoded_recording
from voxcpm_server.settings import Settings

SAID = {"model": "tts-1", "voice": "alloy", "input": "Hello."}


def audio_file(seconds: float, rate: int = 16_000, form: str = "WAV", channels: int = 1) -> bytes:
    file = io.BytesIO()
    tone = np.sin(np.arange(int(seconds * rate)) / 10) / 2
    soundfile.write(file, np.stack([tone] * channels, axis=1), rate, format=form)
    return file.getvalue()


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def wav_of_hours() -> bytes:
    """Half a second of audio, whose header says two hours."""
    content = bytearray(audio_file(0.5))
    at = content.index(b"data") + 4
    content[at : at + 4] = struct.pack("<I", 2 * 3600 * 32_000)
    content[4:8] = struct.pack("<I", 2 * 3600 * 32_000 + 36)
    return bytes(content)


def flac_without_a_length() -> bytes:
    """70 s of FLAC whose header does not say how long it is, as one that was streamed."""
    content = bytearray(audio_file(70, form="FLAC"))
    # 36 bits of STREAMINFO, after 4 + 4 + 13 bytes and the lower half of one more.
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    return bytes(content)


@pytest.mark.parametrize(
    ("fields", "status", "param", "words"),
    [
        ({"input": ""}, 400, "input", "at least 1 character"),
        ({"input": " \n"}, 400, "input", "empty"),
        ({"input": "Привет."}, 400, "input", "letters a to z only"),
        ({"input": "a" * 4097}, 400, "input", "at most 4096 characters, got 4097"),
        ({"model": "tts-9"}, 404, "model", "expected one of voxcpm, tts-1"),
        ({"voice": "nobody"}, 404, "voice", "no voice 'nobody'"),
        ({"voice": {"id": "nobody"}}, 404, "voice", "no voice 'nobody'"),
        ({"voice": "../../etc/passwd"}, 400, "voice", "letters, digits"),
        ({"voice": "ada.voice/../.."}, 400, "voice", "letters, digits"),
        ({"voice": "a" * 101}, 400, "voice", "at most 100 bytes"),
        ({"response_format": "wma"}, 400, "response_format", "'mp3', 'opus'"),
        ({"speed": 5}, 400, "speed", "less than or equal to 4"),
        ({"speed": 0.2}, 400, "speed", "greater than or equal to 0.25"),
        ({"seed": -1}, 400, "seed", "greater than or equal to 0"),
        ({"seed": 2**53}, 400, "seed", "less than or equal to 9007199254740991"),
        ({"cfg_value": 99}, 400, "cfg_value", "cfg_value must be a number from 0 to 10"),
        ({"inference_timesteps": 0}, 400, "inference_timesteps", "inference_timesteps must be"),
        ({"sample_rate": 12_345, "response_format": "mp3"}, 400, "sample_rate", "mp3 has 8000"),
        ({"sample_rate": 1}, 400, "sample_rate", "greater than or equal to 8000"),
        ({"stream_format": "tar"}, 400, "stream_format", "'audio' or 'sse'"),
        ({"prompt_audio": "§", "prompt_text": "Hi."}, 400, "prompt_audio", "in base64"),
        ({"prompt_audio": base64_of(b"RIFF"), "prompt_text": "Hi."}, 400, "prompt_audio", "cannot be read"),
        ({"prompt_audio": base64_of(audio_file(1))}, 400, None, "audio without the transcript"),
        ({"prompt_text": "Hi."}, 400, None, "transcript without the audio"),
        (
            {"prompt_audio": base64_of(audio_file(1)), "prompt_text": "Привет."},
            400,
            "prompt_text",
            "letters a to z only",
        ),
        ({"reference_audio": base64_of(audio_file(1))}, 400, None, "VoxCPM2"),
        (
            {"prompt_audio": base64_of(audio_file(61)), "prompt_text": "a"},
            400,
            "prompt_audio",
            "longer than 60 s",
        ),
        (
            {"prompt_audio": base64_of(flac_without_a_length()), "prompt_text": "a"},
            400,
            "prompt_audio",
            "longer than 60 s",
        ),
        (
            {"prompt_audio": base64_of(audio_file(0.01, 1_000_000)), "prompt_text": "a"},
            400,
            "prompt_audio",
            "8000 to 192000 Hz",
        ),
        (
            {"prompt_audio": base64_of(audio_file(0.01, channels=9)), "prompt_text": "a"},
            400,
            "prompt_audio",
            "at most 8 channels",
        ),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(
    fields: dict[str, Any], status: int, param: str | None, words: str, server: Any
) -> None:
    answer = httpx2.post(f"{server.url}/v1/audio/speech", json={**SAID, **fields})

    error = answer.json()["error"]
    assert answer.status_code == status, error
    assert error["param"] == param
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert error["type"] == "invalid_request_error"


def test_a_recording_whose_header_says_that_it_is_too_long_is_not_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(*_: object, **__: object) -> Any:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(soundfile.SoundFile, "read", read)
    for form in ("WAV", "FLAC", "MP3"):
        with pytest.raises(ApiError, match="longer than 1 s"):
            decoded_recording(audio_file(1.5, form=form), "audio", 1)


def test_a_wav_whose_header_says_hours_is_refused(server: Any) -> None:
    fields = {"prompt_audio": base64_of(wav_of_hours()), "prompt_text": "a b"}
    answer = httpx2.post(f"{server.url}/v1/audio/speech", json={**SAID, **fields}, timeout=60)

    assert answer.status_code == 400
    assert "its header says that there is more than its 0.50 s" in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_request(body: bytes, server: Any) -> None:
    answer = httpx2.post(
        f"{server.url}/v1/audio/speech", content=body, headers={"Content-Type": "application/json"}
    )

    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("files", "data", "status", "words"),
    [
        ({"prompt_audio": b"RIFF"}, {"prompt_text": "Hi."}, 400, "cannot be read"),
        ({"prompt_audio": b"RIFF"}, {}, 400, "cannot be read"),
        ({"notes": b"a"}, {}, 400, "notes: expected text"),
        ({"prompt_audio": b"a", "reference_audio": b"a", "third": b"a"}, {}, 400, "Too many files"),
        ({}, {f"field{i}": "a" for i in range(70)}, 400, "Too many fields"),
        ({"reference_audio": b"a"}, {"speed": "fast"}, 400, "speed: "),
        ({"reference_audio": b"a"}, {"model": "tts-9"}, 404, "expected one of"),
    ],
)
def test_a_form_is_told_what_is_wrong(
    files: dict[str, bytes], data: dict[str, str], status: int, words: str, server: Any
) -> None:
    # Without a file, httpx2 would send another kind of form.
    given = files or {"prompt_audio": b""}
    answer = httpx2.post(f"{server.url}/v1/audio/speech", data={**SAID, **data}, files=given)

    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body", [b"", b"--x\r\n", b"nothing", b'--x\r\nContent-Disposition: form-data; name="a"\r\n']
)
@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "multipart/form-data", "text/plain", ""])
def test_a_body_that_is_no_form(body: bytes, kind: str, server: Any) -> None:
    answer = httpx2.post(f"{server.url}/v1/audio/speech", content=body, headers={"Content-Type": kind})

    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/audio/speech", 405)]
)
def test_wrong_paths_and_methods_have_openais_shape(method: str, path: str, status: int, server: Any) -> None:
    answer = httpx2.request(method, server.url + path)

    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_the_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.audio.speech.create(model="tts-9", voice="alloy", input="Hello.")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.audio.speech.create(model="tts-1", voice="alloy", input="Hello.", speed=17)


def broken_off(running: Any, asked: dict[str, Any]) -> list[str]:
    """The lines of an answer that has no end."""
    lines: list[str] = []
    with (
        pytest.raises(httpx2.RemoteProtocolError),
        httpx2.stream("POST", f"{running.url}/v1/audio/speech", json=asked, timeout=60) as answer,
    ):
        lines.extend(filter(None, answer.iter_lines()))
    return lines


def test_speech_that_becomes_too_long_ends(serve: Callable[..., Any]) -> None:
    running = serve(max_audio_seconds=1)
    said = {**SAID, "input": "one two three four five six seven eight nine ten. " * 2}

    answer = httpx2.post(f"{running.url}/v1/audio/speech", json={**said, "stream": False}, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "speech_too_long"

    # The status is sent already, so the answer has no end, and events tell why.
    lines = broken_off(running, {**said, "stream_format": "sse"})
    last = json.loads(lines[-1].removeprefix("data: "))
    assert last["type"] == "error"
    assert last["error"]["code"] == "speech_too_long"
    with pytest.raises(httpx2.RemoteProtocolError):
        httpx2.post(f"{running.url}/v1/audio/speech", json=said, timeout=60)
    counted = httpx2.get(f"{running.url}/metrics").text
    assert 'voxcpm_requests_total{route="/audio/speech",status="400"} 3.0' in counted


def raw_answer(address: tuple[str, int], request: bytes) -> bytes:
    """All that the server says until it closes the connection."""
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(request)
        parts = []
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


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


def test_keys_are_asked_for(serve: Callable[..., Any]) -> None:
    running = serve(keys=("first", "second"))

    for key in ("first", "second"):
        assert running.client(key).models.list()
    for key in ("third", "firs", "first "[:5] + "x"):
        with pytest.raises(openai.AuthenticationError) as caught:
            running.client(key).audio.speech.create(model="tts-1", voice="alloy", input="Hello.")
        assert caught.value.code == "invalid_api_key"
    assert httpx2.get(f"{running.url}/metrics").status_code == 401
    assert httpx2.get(f"{running.url}/v1/models").headers["www-authenticate"] == "Bearer"
    for path in ("/healthz", "/ready", "/openapi.json"):
        assert httpx2.get(running.url + path).status_code == 200


def test_keys_come_from_the_command_line_a_file_and_the_environment(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with pytest.raises(InputError, match="cannot be read"):
        read_keys(Settings(api_key_file=tmp_path / "absent"))
    with pytest.raises(InputError, match="leave the option out"):
        read_keys(Settings(api_key=[""]))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])  # noqa: S104 - to be refused
def test_without_a_key_only_this_machine_is_served(host: str, tts: Any) -> None:
    with pytest.raises(InputError, match="--insecure-serve-without-key"):
        create_app(tts, Settings(host=host), Keys(()))
    create_app(tts, Settings(host=host), Keys(("key",)))
    create_app(tts, Settings(host=host, insecure_serve_without_key=True), Keys(()))


def test_what_loopback_is() -> None:
    for host in ("127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"):
        assert is_loopback(host)
    for host in ("", "0.0.0.0", "10.0.0.1", "localhost.example.org", "127.0.0.1.example.org"):  # noqa: S104 - to be refused
        assert not is_loopback(host)


def test_web_pages_of_others_are_refused(serve: Callable[..., Any]) -> None:
    running = serve()
    body = {"json": SAID, "timeout": 60}

    def status(**headers: str) -> int:
        return httpx2.post(f"{running.url}/v1/audio/speech", headers=headers, **body).status_code

    assert status() == 200
    assert status(Origin=running.url) == 200
    assert status(Origin="https://example.org") == 403
    assert status(Origin="http://[") == 403
    # A name of the page's own that it has given this machine's address.
    assert status(Host="example.org", Origin="http://example.org") == 403
    assert "access-control-allow-origin" not in httpx2.get(f"{running.url}/v1/models").headers


def test_web_pages_of_others_cannot_make_it_speak_with_a_sound_of_theirs(serve: Callable[..., Any]) -> None:
    """Browsers send no Origin for images and sounds, but say that they are for another site."""
    running = serve(cors_origin=["https://example.org"])
    foreign = {"Sec-Fetch-Site": "cross-site"}

    def status(path: str, **headers: str) -> int:
        return httpx2.get(running.url + path, headers={**foreign, **headers}, timeout=60).status_code

    assert status("/v1/audio/voices/default/preview") == 403
    assert status("/v1/models") == 403
    assert status("/v1/models", Origin="https://example.org") == 200
    assert status("/v1/models", **{"Sec-Fetch-Site": "same-origin"}) == 200
    # A link to the page, and what probes ask for.
    for path in ("/", "/healthz", "/page/style.css"):
        assert status(path) == 200


def test_a_web_page_may_be_allowed(serve: Callable[..., Any]) -> None:
    running = serve(cors_origin=["https://example.org"])
    asks = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}

    allowed = httpx2.options(f"{running.url}/v1/audio/speech", headers=asks)
    assert allowed.headers["access-control-allow-origin"] == "https://example.org"
    answer = httpx2.get(f"{running.url}/v1/models", headers={"Origin": "https://example.org"})
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    assert httpx2.get(f"{running.url}/v1/models", headers={"Origin": "https://a.org"}).status_code == 403


def test_an_allowed_page_may_send_the_headers_of_the_clients(serve: Callable[..., Any]) -> None:
    running = serve(cors_origin=["https://example.org"])
    client = running.client()
    # What OpenAI's client sends in a browser, too, and ElevenLabs' key.
    headers = {*map(str.lower, client.default_headers), "x-stainless-retry-count", "range", "xi-api-key"}
    assert "x-stainless-os" in headers
    asked = {
        "Origin": "https://example.org",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": ",".join(sorted(headers)),
    }

    allowed = httpx2.options(f"{running.url}/v1/audio/speech", headers=asked)
    assert allowed.status_code == 200, allowed.text
    assert headers <= set(allowed.headers["access-control-allow-headers"].split(","))
    answer = httpx2.get(f"{running.url}/v1/models", headers={"Origin": "https://example.org"})
    assert "Content-Range" in answer.headers["access-control-expose-headers"]
    foreign = httpx2.options(f"{running.url}/v1/audio/speech", headers=asked | {"Origin": "https://a.org"})
    assert foreign.status_code == 400


@pytest.mark.parametrize(
    ("error", "code"),
    [(BundleError, "model_unavailable"), (DeviceError, "device_unavailable")],
)
def test_a_bundle_or_device_that_fails_later_says_when_to_try_again(
    error: type[Exception],
    code: str,
    serve: Callable[..., Any],
    tts: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(**_: object) -> Any:
        raise error("/secret/bundle: the memory is not enough")

    monkeypatch.setattr(tts, "plan", failing)
    answer = httpx2.post(f"{serve().url}/v1/audio/speech", json=SAID)

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
    assert int(answer.headers["retry-after"]) >= 1
    assert "secret" not in answer.text
    assert "/secret/bundle: the memory is not enough" in caplog.text


def test_an_error_that_nobody_expected_is_one_line_without_the_text(
    serve: Callable[..., Any], tts: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = serve()

    def broken(*_: object, **__: object) -> Any:
        raise ZeroDivisionError("secret words")

    def broken_later(*_: object, **__: object) -> Any:
        yield np.zeros(100, np.float32)
        broken()

    monkeypatch.setattr(tts, "stream_plan", broken_later)
    events = "\n".join(broken_off(running, {**SAID, "stream_format": "sse"}))
    with pytest.raises(httpx2.RemoteProtocolError):
        httpx2.post(f"{running.url}/v1/audio/speech", json={**SAID, "response_format": "pcm"})
    assert events.count('"server_error"') == 1
    assert "secret" not in events + caplog.text
    assert caplog.text.count("ZeroDivisionError at ") == 2
    monkeypatch.setattr(tts, "plan", broken)
    answer = httpx2.post(f"{running.url}/v1/audio/speech", json=SAID)

    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text + caplog.text
    assert "ZeroDivisionError at " in caplog.text
    assert "Traceback" not in caplog.text
