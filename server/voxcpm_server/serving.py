"""uvicorn with a bound on idle connections, and with draining at shutdown."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from voxcpm_server.errors import ApiError
from voxcpm_server.settings import Settings
from voxcpm_server.speech.service import Service


class _Connection(H11Protocol):
    """A connection that is closed if no request arrives in time, or if it is idle and its place is needed.

    `BoundedRequests` bounds the requests in progress: uvicorn's `limit_concurrency` also counts idle connections, which
    would shut out everyone, probes included.
    """

    settings: Settings
    idle_since = 0.0
    """`time.monotonic`."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout, and close the longest idle connection if there are too many."""
        super().connection_made(transport)
        self._start_timer()
        if len(self.connections) > self.settings.max_connections:
            others = [c for c in self.connections if isinstance(c, _Connection) and c is not self]
            idle = [other for other in others if other.is_idle]
            if idle:
                min(idle, key=lambda c: c.idle_since).transport.close()

    def data_received(self, data: bytes) -> None:
        """Stop the timeout once the head of a request is complete."""
        super().data_received(data)
        if not self.is_idle:
            self._stop_timer()
        elif self._timer is None:
            self._start_timer()

    def on_response_complete(self) -> None:
        """Note since when it is idle."""
        self.idle_since = time.monotonic()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout."""
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP, which never reaches the app, in OpenAI's shape."""
        body = json.dumps(ApiError(400, msg).document).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        head = h11.Response(status_code=400, headers=headers, reason="Bad Request")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request; a websocket does not."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return is_answered and not self.transport.is_closing() and self.transport.get_protocol() is self

    def _start_timer(self) -> None:
        self.idle_since = time.monotonic()
        self._timer = self.loop.call_later(self.settings.client_timeout, self._close_if_idle)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_idle(self) -> None:
        self._timer = None
        if self.is_idle:
            self.transport.close()


def _is_news(record: logging.LogRecord) -> bool:
    """False for the traceback that Starlette logs after a second Ctrl-C."""
    return not record.getMessage().rstrip().endswith("asyncio.exceptions.CancelledError")


class Server(uvicorn.Server):
    """uvicorn for an app of `create_app`. The first signal drains, a second Ctrl-C stops at once.

    listeners: sockets that optional rooms take connections from, by the name of the room.
    """

    def __init__(
        self,
        app: FastAPI,
        settings: Settings,
        *,
        listeners: Mapping[str, socket.socket] = MappingProxyType({}),
    ) -> None:
        self._service: Service = app.state.service
        self._listeners = listeners
        config = uvicorn.Config(
            app,
            log_level="info" if settings.access_log else "warning",
            access_log=settings.access_log,
            timeout_graceful_shutdown=settings.drain_seconds,
            http=type("_BoundConnection", (_Connection,), {"settings": settings}),
            server_header=False,
            # Checked by the header. Audio does not compress, and a compressed message can hide its size.
            ws_max_size=settings.max_message_bytes,
            ws_per_message_deflate=False,
        )
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(_is_news)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Start draining on a signal."""
        self._service.draining = True
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to take connections, those of optional rooms included."""
        await super().startup(sockets)
        for name, listener in self._listeners.items():
            await self._service.rooms[name].listen(listener)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain conversations first: uvicorn would close their websockets at once."""
        self._service.draining = True
        for name in self._listeners:
            self._service.rooms[name].stop_listening()
        for server in self.servers:
            server.close()
        began = time.monotonic()
        patience = self.config.timeout_graceful_shutdown or 0
        await self._service.conversations.drain(patience, lambda: self.force_exit)
        # At least a second for connections that have just been closed.
        self.config.timeout_graceful_shutdown = max(1, round(patience - (time.monotonic() - began)))
        await super().shutdown(sockets)
