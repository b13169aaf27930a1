"""Requests and websockets: not too many at the same time."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from voxcpm_server.errors import RETRY_SECONDS, ApiError, refuse
from voxcpm_server.settings import Settings

PROBES = frozenset({"/healthz", "/ready", "/metrics"})
"""What is always answered."""


class BoundedRequests:
    """An app that answers a bounded number of requests and websockets at the same time, and probes in any case."""

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        self._maximum = settings.max_connections
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 503 to one more."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in PROBES:
            await self._app(scope, receive, send)
        elif self._running >= self._maximum:
            error = ApiError(
                503,
                f"{self._running} connections are open already, the most that may be; try again in {RETRY_SECONDS} s",
                headers={"Retry-After": RETRY_SECONDS},
            )
            await refuse(error, scope, receive, send)
        else:
            self._running += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._running -= 1
