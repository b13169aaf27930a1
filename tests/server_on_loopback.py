"""A server on loopback, in a thread of this process, and a client that sends it bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partialmethod
from typing import Any

import httpx2
import openai

from voxcpm_runtime import VoxCPM
from voxcpm_server.application import create_app
from voxcpm_server.middleware.authentication import Keys
from voxcpm_server.rooms import AllSettings as Settings
from voxcpm_server.rooms import doors
from voxcpm_server.serving import Server


class ServerOnLoopback:
    """Runs from its construction to `stop`."""

    def __init__(self, app: Any, settings: Settings) -> None:
        self._clients: list[openai.OpenAI] = []
        self.service = app.state.service
        self._listener = _listener()
        self.address = self._listener.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        self._listeners = {
            name: _listener() for name, room in doors().items() if room.address(settings, has_keys=True)
        }
        self.ports = {name: listener.getsockname()[1] for name, listener in self._listeners.items()}
        """Ports of the enabled optional rooms by name."""
        self._server = Server(
            app, replace(settings, drain_seconds=min(5, settings.drain_seconds)), self._listeners
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self._thread.start()

    @classmethod
    @contextlib.contextmanager
    def of(cls, tts: VoxCPM, keys: tuple[str, ...] = (), **settings: Any) -> Iterator[ServerOnLoopback]:
        """A server for a bundle, with these settings; with jobs if they name a folder for them."""
        if "jobs_folder" not in settings:
            settings["max_jobs"] = 0
        chosen = Settings(**settings)
        running = cls(create_app(tts, chosen, Keys(keys)), chosen)
        try:
            yield running
        finally:
            running.stop()

    def client(self, key: str = "none") -> openai.OpenAI:
        """OpenAI's client, closed with the server."""
        made = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)
        self._clients.append(made)
        return made

    def _asked(self, method: str, path: str, **given: Any) -> httpx2.Response:
        return httpx2.request(method, self.url + path, **given)

    get = partialmethod(_asked, "GET")
    post = partialmethod(_asked, "POST")
    delete = partialmethod(_asked, "DELETE")
    head = partialmethod(_asked, "HEAD")
    options = partialmethod(_asked, "OPTIONS")

    def metrics(self) -> str:
        return self.get("/metrics").text

    def speak(self, text: str = "Hello.", **fields: Any) -> httpx2.Response:
        """The answer to a request for speech, as JSON."""
        return self.post("/v1/audio/speech", json={"model": "tts-1", "input": text, **fields})

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self._server.should_exit = True
        self._thread.join(30)
        for listener in (self._listener, *self._listeners.values()):
            listener.close()
        assert not self._thread.is_alive()


def raw_answer(address: tuple[str, int], request: bytes) -> bytes:
    """Everything the server sends until it closes or resets the connection."""
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65_536):
                answer += part
    return answer


def is_refused(url: str) -> bool:
    """Whether nothing listens there any more."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0


def post(length: int, *headers: str, path: str = "/v1/audio/speech") -> bytes:
    """The head of a request with a body of that many bytes."""
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *headers)
    return "\r\n".join((*lines, "", "")).encode()


def _listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    # Small socket buffers, so that a stalled reader is noticed within seconds.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)
    return listener
