"""Limits on the number of requests, and on the size, duration and charset of their bodies."""

from __future__ import annotations

import time

import anyio
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxcpm_server.errors import RETRY, RETRY_SECONDS, ApiError, send_error
from voxcpm_server.settings import MEGABYTE, Settings

MIN_BYTES_PER_SECOND = 10_000  # minimum upload rate, after the client timeout
UNCOUNTED_BYTES_PER_BODY = 65_536
"""Bytes of each body that do not count towards the total, so texts pass while others upload recordings."""
PROBES = frozenset({"/healthz", "/ready", "/metrics"})  # paths exempt from the limit
# The rest of a rejected body is not read.
_CLOSE = {"Connection": "close"}


class ConnectionLimitMiddleware:
    """Responds with 503 if too many requests and websockets are in progress; probes do not count."""

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        self._maximum = settings.max_connections
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or reject it."""
        if scope["type"] == "lifespan" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
        elif self._running >= self._maximum:
            message = f"too many connections: {self._running} are open"
            error = ApiError(503, f"{message}; try again in {RETRY_SECONDS} s", headers=RETRY)
            await send_error(error, scope, receive, send)
        else:
            self._running += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._running -= 1


class BodyLimitMiddleware:
    """Limits the size (413), total size (503) and duration (408) of bodies. Forms must be UTF-8 (400).

    A body counts until its response is complete, since its recordings may stay in memory that long. uvicorn limits
    websocket messages.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        self._settings, self._maximum = settings, settings.max_upload_bytes
        self._buffered_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. A body that is too large by its Content-Length is not read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check_headers(Headers(scope=scope))
        except ApiError as error:
            await send_error(error, scope, receive, send)
            return
        patience, maximum = self._settings.client_timeout, self._maximum
        received, buffered, complete = 0, 0, False
        waited = 0.0  # seconds

        async def bounded() -> Message:
            nonlocal received, buffered, waited, complete
            if complete:
                return await receive()  # wait for the disconnect, without a timeout
            began = time.monotonic()
            try:
                with anyio.fail_after(patience):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, f"the body stalled for {patience:g} s", headers=_CLOSE) from None
            waited += time.monotonic() - began
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > maximum:
                raise self._too_large(f"more than {maximum}")
            counted = max(0, received - UNCOUNTED_BYTES_PER_BODY)
            self._buffered_bytes += counted - buffered
            buffered = counted
            if self._buffered_bytes > round(self._settings.max_bodies_megabytes * MEGABYTE):
                bound = f"{self._settings.max_bodies_megabytes:g} MB in total; try again in {RETRY_SECONDS} s"
                text = f"the bodies of all requests exceed {bound}"
                raise ApiError(503, text, headers=_CLOSE | RETRY)
            if not complete and waited > patience + received / MIN_BYTES_PER_SECOND:
                rate = f"body too slow: expected {MIN_BYTES_PER_SECOND} bytes/s"
                raise ApiError(408, f"{rate}, got {received} bytes in {waited:.0f} s", headers=_CLOSE)
            return message

        try:
            await self._app(scope, bounded, send)
        finally:
            self._buffered_bytes -= buffered

    def _check_headers(self, headers: Headers) -> None:
        # Starlette would decode a form with any Python codec named by the client; some take quadratic time.
        charset = parse_options_header(headers.get("content-type"))[1].get(b"charset", b"utf-8")
        if charset.lower() not in (b"utf-8", b"utf8"):
            named = charset[:40].decode("latin-1")
            raise ApiError(400, f"Content-Type: expected the charset utf-8, got {named!r}", headers=_CLOSE)
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self._maximum:
            raise self._too_large(announced)

    def _too_large(self, size: str) -> ApiError:
        maximum = self._maximum / MEGABYTE
        return ApiError(413, f"expected a body of at most {maximum:g} MB, got {size} bytes", headers=_CLOSE)
