"""The outermost middleware: counts each request and websocket by its outcome, and answers every error."""

from __future__ import annotations

import asyncio
import contextlib
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxcpm_server.errors import CLIENT_GONE, as_api_error, close_code, refuse
from voxcpm_server.middleware.metrics import Metrics

SWITCHED = 101
"""Status of a websocket that was accepted and closed without an error."""


class ErrorAndMetricsMiddleware:
    """Answers errors in one line, and counts requests by route and status.

    Sets `scope["state"]["began"]` to the time of the request (`time.perf_counter`). A websocket counts as 101 if it
    was closed without an error, otherwise as the status of its error.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. After an error within an answer, the connection is closed before the answer's end."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        status: int | None = None
        scope.setdefault("state", {})["began"] = time.perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = SWITCHED
            await send(message)

        try:
            await self._app(scope, receive, noted)
        # No error may reach the server. A request as a whole is cancelled only at shutdown.
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            answer = as_api_error(error)
            if status is None and answer.status_code != CLIENT_GONE:
                await refuse(answer, scope, receive, noted)
            elif status == SWITCHED:
                with contextlib.suppress(Exception):
                    await send({"type": "websocket.close", "code": close_code(answer), "reason": ""})
            status = answer.status_code
        finally:
            # An answer that was cut off began with 200, a websocket with 101.
            status = scope.get("state", {}).get("broken_off", status)
            # The route's pattern, not the path: a path may be anything.
            route = getattr(scope.get("route"), "path", "other").removeprefix("/v1")
            self._metrics.requests.labels(route, str(status or CLIENT_GONE)).inc()
