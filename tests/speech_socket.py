"""A client of the websocket `/v1/audio/stream`."""

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from voxcpm_runtime import VoxCPM

ELEVENLABS = "/v1/text-to-speech/default/multi-stream-input?output_format=pcm_24000&seed=7"


@contextlib.contextmanager
def socket_to(server: Any, path: str = "/v1/audio/stream", **options: Any) -> Iterator[ClientConnection]:
    url = server.url.replace("http", "ws")
    with connect(f"{url}{path}", max_size=None, close_timeout=5, **options) as connection:
        yield connection


def said(connection: ClientConnection, *messages: dict[str, Any]) -> None:
    for message in messages:
        connection.send(json.dumps(message))


def heard(connection: ClientConnection, last: str = "done") -> tuple[bytes, list[dict[str, Any]]]:
    """All audio and events up to one of that type or an error."""
    audio, events = b"", []
    while not events or events[-1]["type"] not in (last, "error"):
        message = connection.recv(timeout=30)
        if isinstance(message, bytes):
            audio += message
        elif (event := json.loads(message))["type"] == "audio":
            audio += base64.b64decode(event["audio"])
        else:
            events.append(event)
    return audio, events


def from_elevenlabs(connection: ClientConnection, finals: int = 1) -> list[dict[str, Any]]:
    """All messages of ElevenLabs' websockets up to that many final ones."""
    messages: list[dict[str, Any]] = []
    while sum(message.get("isFinal") is True for message in messages) < finals:
        messages.append(json.loads(connection.recv(timeout=30)))
    return messages


def spoken_by(tts: VoxCPM, text: str, **given: Any) -> bytes:
    """The audio of a session of the runtime."""
    with tts.session(**given) as session:
        session.push_text(text)
        session.flush()
        return np.concatenate([chunk.pcm for chunk in session]).astype("<i2").tobytes()


def refusal(connection: ClientConnection) -> tuple[dict[str, Any], int]:
    """A connection's final error and close code."""
    error = heard(connection)[1][-1]
    assert set(error) == {"type", "error"}, error
    assert set(error["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in error["error"]["message"]
    with pytest.raises(ConnectionClosed) as closed:
        connection.recv(timeout=10)
    return error["error"], closed.value.rcvd.code


def idle(running: Any) -> bool:
    """Whether no speech is left."""
    threads = [thread for thread in threading.enumerate() if thread.name in ("speech", "voxcpm-session")]
    return not running.service.queue.busy and not running.service.queue.waiting and not threads
