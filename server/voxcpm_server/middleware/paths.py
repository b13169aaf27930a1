"""Requests as clients vary them, and an id for each."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = "X-Request-ID"
_ID = re.compile(r"[!-~]{1,128}")


class LenientRequestMiddleware:
    """Accepts a trailing slash, and HEAD where GET is; responds with the client's `X-Request-ID`, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        # A copy: the server sends no body for the original's HEAD.
        scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        if scope.get("method") == "HEAD":
            scope["method"] = "GET"

        async def send_with_id(message: Message) -> None:
            if message["type"].endswith(("http.response.start", "websocket.accept")):
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)
