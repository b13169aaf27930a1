"""uvicorn, as this server runs it: what it bounds by itself, and how it ends."""

from __future__ import annotations

import socket
import time
from typing import Any

import uvicorn
from fastapi import FastAPI

from voxcpm_server.service import Service
from voxcpm_server.settings import Settings
from voxcpm_server.wyoming_server import WyomingServer


class Server(uvicorn.Server):
    """uvicorn for an app of `create_app`. The first signal drains, a second Ctrl-C ends at once.

    wyoming: a socket that listens, to speak Wyoming on.
    """

    def __init__(
        self, app: FastAPI, settings: Settings, *, wyoming: socket.socket | None = None, **options: Any
    ) -> None:
        self._service: Service = app.state.service
        self._wyoming = WyomingServer(self._service)
        self._wyoming_listener = wyoming
        config = uvicorn.Config(
            app,
            log_level="info" if settings.access_log else "warning",
            access_log=settings.access_log,
            timeout_graceful_shutdown=settings.drain_seconds,
            limit_concurrency=settings.max_connections,
            server_header=False,
            # Refused by its header. Audio does not become smaller by deflating, and what is deflated can hide its size.
            ws_max_size=settings.max_message_bytes,
            ws_per_message_deflate=False,
            **options,
        )
        super().__init__(config)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Called by a signal."""
        self._service.draining = True
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        await super().startup(sockets)
        if self._wyoming_listener is not None:
            await self._wyoming.start(self._wyoming_listener)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let conversations end before uvicorn, which would close their websockets at once, ends the rest."""
        self._service.draining = True
        self._wyoming.close()
        for server in self.servers:
            server.close()
        began = time.monotonic()
        patience = self.config.timeout_graceful_shutdown or 0
        await self._service.conversations.drain(patience, lambda: self.force_exit)
        # A second for connections that have just been closed.
        self.config.timeout_graceful_shutdown = max(1, round(patience - (time.monotonic() - began)))
        await super().shutdown(sockets)
