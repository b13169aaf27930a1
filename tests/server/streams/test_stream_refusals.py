"""What the websocket `/v1/audio/stream` refuses: messages, handshakes, keys, and more than its limits."""

from __future__ import annotations

import contextlib
import json
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from speech_socket import heard, idle, refusal, said, socket_to
from voxcpm_runtime import VoxCPM
from waiting import until

# Chance may give a voice that takes long; whether it does is not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::voxcpm_runtime.SuspiciousWarning")
LONG = "one two three four five six seven eight nine ten, and on we go. "
START = {"type": "start"}
TEXT = {"type": "text", "text": "Hello."}


@pytest.mark.parametrize(
    ("messages", "words", "param"),
    [
        (["[" * 50_000], "a JSON object", None),
        ([b"\x00\xff"], "got bytes", None),
        ([{}], "expected start, text", "type"),
        ([TEXT], "send a start first", "type"),
        ([START, START], "one speech at a time", "type"),
        ([START, {"type": "text", "text": LONG}, {"type": "end"}, TEXT], "a start first", "type"),
        ([START, {"type": "text", "text": 5}], "expected a string", "text"),
        ([START, {"type": "text", "text": "a" * 4097}], "at most 4096 characters", "text"),
        ([START, {"type": "text", "text": "Hi \ud83d"}, {"type": "end"}], "not valid Unicode", "text"),
        ([START, {"type": "text", "text": "漢字漢字漢字。"}, {"type": "end"}], "letters a to z", "text"),
        ([{**START, "model": "tts-9"}], "expected one of voxcpm", "model"),
        ([{**START, "sample_rate": 12_345, "response_format": "mp3"}], "mp3 has 8000", "sample_rate"),
        ([{**START, "audio": "paper"}], "'binary' or 'base64'", "audio"),
    ],
)
def test_a_wrong_message_is_told_what_is_wrong(
    messages: list[Any], words: str, param: str | None, server: Any
) -> None:
    with socket_to(server) as connection:
        for message in messages:
            connection.send(json.dumps(message) if isinstance(message, dict) else message)
        error, code = refusal(connection)

    assert words in error["message"]
    assert error["param"] == param
    assert code == 1008
    until(lambda: idle(server))


def test_a_message_of_100_megabytes_is_refused_by_its_header(server: Any) -> None:
    with socket_to(server) as connection:
        # The head of a frame of text, masked, of so many bytes, and no more than a thousandth of them.
        connection.socket.sendall(struct.pack("!BBQ", 0x81, 0xFF, 100_000_000) + b"mask" + bytes(100_000))
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=10)
    assert closed.value.rcvd.code == 1009


def test_speech_that_becomes_too_long_ends(serve: Callable[..., Any]) -> None:
    running = serve(max_audio_seconds=1)
    with socket_to(running) as connection:
        said(connection, START, {"type": "text", "text": LONG}, {"type": "end"})
        error, _ = refusal(connection)
    assert error["code"] == "speech_too_long"


def test_a_connection_without_messages_is_closed(serve: Callable[..., Any]) -> None:
    running = serve(idle_seconds=0.3)
    with socket_to(running) as connection:
        # What is spoken takes longer than that.
        said(connection, START, {"type": "text", "text": LONG}, {"type": "flush"})
        assert heard(connection, "flushed")[1][-1]["type"] == "flushed"
        error, code = refusal(connection)
    assert "no message came for 0.3 s" in error["message"]
    assert (error["code"], code) == ("timeout", 1008)


def test_only_so_many_are_open(serve: Callable[..., Any]) -> None:
    running = serve(keys=("a", "b"), max_conversations=3)
    with contextlib.ExitStack() as stack:

        def opened(key: str) -> ClientConnection:
            headers = {"Authorization": f"Bearer {key}"}
            return stack.enter_context(socket_to(running, additional_headers=headers))

        opened("a")
        with pytest.raises(InvalidStatus) as own:
            opened("a")
        assert own.value.response.status_code == 429
        said(opened("b"), START)
        running.service.conversations._maximum = 2
        with pytest.raises(InvalidStatus) as anyones:
            opened("b")
        assert anyones.value.response.status_code == 503
        assert json.loads(anyones.value.response.body)["error"]["type"] == "server_error"
        assert int(anyones.value.response.headers["Retry-After"]) >= 1
    until(lambda: not len(running.service.conversations))


def test_keys_are_asked_for_in_each_conventional_form(serve: Callable[..., Any]) -> None:
    running = serve(keys=("secret",))

    def status(**options: Any) -> int:
        try:
            with socket_to(running, **options) as connection:
                return 101 if connection.subprotocol in (None, "speech") else 0
        except InvalidStatus as refused:
            return refused.response.status_code if "www-authenticate" in refused.response.headers else 0

    def offered(key: str) -> dict[str, Any]:
        return {"subprotocols": ["speech", f"openai-insecure-api-key.{key}"]}

    assert status() == 401
    assert status(additional_headers={"Authorization": "Bearer wrong"}) == 401
    assert status(additional_headers={"xi-api-key": "wrong"}) == 401
    assert status(**offered("wrong")) == 401
    assert status(additional_headers={"Authorization": "Bearer secret"}) == 101
    assert status(additional_headers={"xi-api-key": "secret"}) == 101
    assert status(**offered("secret")) == 101


@pytest.mark.parametrize(
    ("path", "origin", "status", "kind"),
    [
        ("/v1/audio/nothing", None, 404, "not_found"),
        ("/v1/audio/stream", "https://example.org", 403, None),
    ],
)
def test_a_refused_handshake_has_an_answer_and_leaves_the_log_empty(
    path: str, origin: Any, status: int, kind: str | None, server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidStatus) as refused, socket_to(server, path, origin=origin):
        pass
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["error"]["code"] == kind
    # It is logged after the answer, if at all.
    time.sleep(0.2)
    assert not caplog.records


def test_an_error_that_nobody_expected_is_one_line_without_the_text(
    serve: Callable[..., Any], tts: VoxCPM, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = serve()

    def broken(*_: object, **__: object) -> Any:
        raise ZeroDivisionError("secret words")

    monkeypatch.setattr(tts, "session", broken)
    with socket_to(running) as connection:
        said(connection, START)
        error, code = refusal(connection)
    assert (error["type"], code) == ("server_error", 1011)
    assert "secret" not in error["message"] + caplog.text
    assert "ZeroDivisionError at " in caplog.text
    assert "Traceback" not in caplog.text
