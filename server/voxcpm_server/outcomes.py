"""The outermost layer of the app: each request is counted by its outcome, and no error gets past it."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxcpm_server.errors import CLIENT_GONE, as_api_error
from voxcpm_server.metrics import Metrics


class Outcomes:
    """An app whose errors are answered in one line, and whose requests are counted by route and status."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. After an error in the middle of an answer the connection ends without the answer's end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status: int | None = None

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:  # noqa: BLE001 - whatever it is, the server goes on
            answer = as_api_error(error)
            if status is None and answer.status_code != CLIENT_GONE:
                await answer.response()(scope, receive, noted)
            status = answer.status_code
        finally:
            # An answer that was broken off has begun with 200.
            status = scope.get("state", {}).get("broken_off", status)
            # The route's pattern, not the path: a path may be anything.
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, str(status or CLIENT_GONE)).inc()
