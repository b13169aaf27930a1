"""uvicorn, with a timeout for idle connections and draining at shutdown."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Mapping

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from voxcpm_server.rooms import Room
from voxcpm_server.settings import Settings
from voxcpm_server.speech.service import Service


class _Connection(H11Protocol):
    """Closes a connection if the head of a request does not arrive in time; uvicorn has no such timeout."""

    head_timeout: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(self.head_timeout, self._close_if_idle, None)

    def on_response_complete(self) -> None:
        answered = self.cycle  # the next request may already be there
        super().on_response_complete()
        self.loop.call_later(self.head_timeout, self._close_if_idle, answered)

    def _close_if_idle(self, after: object) -> None:
        # A websocket has switched to another protocol.
        if self.cycle is after and self.transport.get_protocol() is self:
            self.transport.close()


def _is_relevant(record: logging.LogRecord) -> bool:
    """Drop the traceback that Starlette logs after a second Ctrl-C."""
    return not record.getMessage().rstrip().endswith("asyncio.exceptions.CancelledError")


class Server(uvicorn.Server):
    """uvicorn for an app of `create_app`. The first signal drains, a second Ctrl-C stops immediately.

    listeners: sockets of optional rooms, by room name.
    """

    def __init__(self, app: FastAPI, settings: Settings, listeners: Mapping[str, socket.socket]) -> None:
        self._service: Service = app.state.service
        self._rooms: Mapping[str, Room] = app.state.rooms
        self._listeners = listeners

        class TimedConnection(_Connection):
            head_timeout = settings.client_timeout

        config = uvicorn.Config(
            app,
            log_level="info" if settings.access_log else "warning",
            access_log=settings.access_log,
            timeout_graceful_shutdown=settings.drain_seconds,
            http=TimedConnection,
            server_header=False,
            # Checked by the header. Audio does not compress, and a compressed message can hide its size.
            ws_max_size=settings.max_message_bytes,
            ws_per_message_deflate=False,
        )
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(_is_relevant)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting connections, including those of optional rooms."""
        await super().startup(sockets)
        for name, listener in self._listeners.items():
            self.servers.append(await self._rooms[name].listen(listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain conversations first: uvicorn would close their websockets immediately."""
        self._service.draining = True
        for server in self.servers:
            server.close()
        began = time.monotonic()
        timeout = self.config.timeout_graceful_shutdown or 0
        await self._service.conversations.drain(timeout, lambda: self.force_exit)
        # At least a second for connections that are just closing.
        self.config.timeout_graceful_shutdown = max(1, round(timeout - (time.monotonic() - began)))
        await super().shutdown(sockets)
