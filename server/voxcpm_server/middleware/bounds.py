"""Limits on requests: their number, and the size, duration and charset of their bodies."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import time
from functools import partial
from urllib.parse import unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxcpm_server.errors import RETRY_SECONDS, ApiError, refuse
from voxcpm_server.settings import MEGABYTE, Settings

MIN_BYTES_PER_SECOND = 10_000
"""Minimum rate of a body, after the client timeout."""
UNCOUNTED_BYTES = 65_536
"""Bytes of each body that do not count towards the sum, so that texts pass while others upload recordings."""
_CHARSETS = (b"utf-8", b"utf8")
# python-multipart's own limit.
_MAX_BOUNDARY = 256
PROBES = frozenset({"/healthz", "/ready", "/metrics"})
"""Paths that are always answered."""


class BoundedRequests:
    """Bounds the number of requests and websockets in progress; probes do not count."""

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        self._maximum = settings.max_connections
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 503 when there are too many."""
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


class BoundedBody:
    """Bounds the bodies of requests in size, in sum and in time, and requires UTF-8 in forms and URLs.

    A body counts until its request is answered, since files of a form or recordings in it may be held that long.
    Messages of websockets are bounded in size; their conversation has its own timeouts.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        self._maximum = settings.max_upload_bytes
        self._max_together = settings.max_bodies_bytes
        self._held = 0
        self._max_of_message = settings.max_message_bytes
        self._patience = settings.client_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 413 for a body that is too large (unread if its header says so), and 408 for one that is too slow.

        503 if it is too large together with the bodies of other requests; 400 if the body, a form's text or the URL is
        not UTF-8.
        """
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        kind, parameters = parse_options_header(headers.get("content-type"))
        if (refused := _not_utf8(scope, parameters.get(b"charset", _CHARSETS[0]))) is not None:
            await refuse(refused, scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._app(scope, partial(self._message, receive), send)
            return
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self._maximum:
            await self._too_large(announced).response()(scope, receive, send)
            return
        texts = _FormTexts(parameters.get(b"boundary", b"")) if kind == b"multipart/form-data" else None
        taken = held = 0
        # Only time spent waiting for the client counts.
        waited = 0.0
        complete = False

        async def bounded() -> Message:
            nonlocal taken, held, waited, complete
            if complete:
                # Only the end of the connection can follow, for which there is no timeout.
                return await receive()
            began = time.monotonic()
            try:
                message = await asyncio.wait_for(receive(), self._patience)
            except asyncio.TimeoutError:
                raise self._too_slow(f"no more of the body came for {self._patience:g} s") from None
            waited += time.monotonic() - began
            taken += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if taken > self._maximum:
                raise self._too_large(f"more than {self._maximum}")
            if texts is not None:
                texts.check(message.get("body", b""))
            counted = max(0, taken - UNCOUNTED_BYTES)
            self._held += counted - held
            held = counted
            if self._held > self._max_together:
                raise self._too_much_together()
            if not complete and waited > self._patience + taken / MIN_BYTES_PER_SECOND:
                raise self._too_slow(
                    f"expected {MIN_BYTES_PER_SECOND} bytes of the body a second, got {taken} in {waited:.0f} s"
                )
            return message

        try:
            await self._app(scope, bounded, send)
        finally:
            self._held -= held

    async def _message(self, receive: Receive) -> Message:
        """The next message of a websocket. Raises ApiError (413) for one that is too large."""
        message = await receive()
        size = max(len(message.get("text") or ""), len(message.get("bytes") or b""))
        if size > self._max_of_message:
            raise ApiError(413, f"expected messages of at most {self._max_of_message} bytes, got {size}")
        return message

    def _too_slow(self, reason: str) -> ApiError:
        return ApiError(408, reason, headers={"Connection": "close"})

    def _too_large(self, size: str) -> ApiError:
        # The rest of the body is not read.
        return ApiError(
            413,
            f"expected a body of at most {self._maximum / MEGABYTE:g} MB, got {size} bytes",
            headers={"Connection": "close"},
        )

    def _too_much_together(self) -> ApiError:
        return ApiError(
            503,
            f"the bodies of all requests are larger than {self._max_together / MEGABYTE:g} MB together; "
            f"try again in {RETRY_SECONDS} s",
            headers={"Connection": "close", "Retry-After": RETRY_SECONDS},
        )


class _FormTexts:
    """Checks that the names and texts of a form are UTF-8, while it arrives. Starlette falls back to Latin-1."""

    def __init__(self, boundary: bytes) -> None:
        self._header = self._value = b""
        self._part: dict[bytes, bytes] = {}
        self._text = codecs.getincrementaldecoder("utf-8")()
        self._parser = MultipartParser(
            boundary[:_MAX_BOUNDARY],
            {
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
            },
        )

    def check(self, data: bytes) -> None:
        """Check the next bytes. Raises ApiError (400), naming the field, if they are not UTF-8."""
        # A malformed form is answered by Starlette's own parser.
        with contextlib.suppress(FormParserError):
            try:
                self._parser.write(data)
            except UnicodeDecodeError:
                name = self._part.get(b"name", b"").decode(errors="replace") or None
                raise ApiError(
                    400,
                    f"{name or 'body'}: expected UTF-8",
                    param=name,
                    code="invalid_value",
                    headers={"Connection": "close"},
                ) from None

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._part = parse_options_header(self._value)[1]
            self._value.decode()
        self._header = self._value = b""

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if b"filename" not in self._part:
            self._text.decode(data[start:end])

    def _on_part_end(self) -> None:
        self._text.decode(b"", final=True)


def _not_utf8(scope: Scope, charset: bytes) -> ApiError | None:
    """The error of a charset or URL that is not UTF-8; None if both are."""
    close = {"Connection": "close"}
    # Starlette would decode with any Python codec that the client names; some take quadratic time.
    if charset.lower() not in _CHARSETS:
        named = charset[:40].decode("latin-1")
        return ApiError(400, f"Content-Type: expected the charset utf-8, got {named!r}", headers=close)
    try:
        for part in (scope.get("raw_path") or b"", scope.get("query_string", b"")):
            unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        return ApiError(400, "URL: expected UTF-8", code="invalid_value", headers=close)
    return None
