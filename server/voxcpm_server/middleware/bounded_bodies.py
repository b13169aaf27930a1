"""Bodies of requests: not too large, alone or together, in UTF-8 as their URLs, and not waited for without end."""

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
"""How fast a body must come, beyond the patience that every client has once."""
UNCOUNTED_BYTES = 65_536
"""What each body may have beside the sum of all: whoever sends a text is not refused because others send recordings."""
_CHARSETS = (b"utf-8", b"utf8")
# As python-multipart has it, which refuses longer ones.
_MAX_BOUNDARY = 256


class BoundedBody:
    """An app whose requests' bodies are bounded in size, in sum and in time; the texts of forms and URLs are UTF-8.

    A body counts until its request is answered, as long as files of a form or the recordings read from it may be held.

    A websocket's messages are bounded in size; the time between them is its conversation's business.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        self._maximum = settings.max_upload_bytes
        self._max_together = settings.max_bodies_bytes
        self._held = 0
        self._max_of_message = settings.max_message_bytes
        self._patience = settings.client_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 413 for a body that is too large, unread if its header says so, and 408 for one that comes too slowly.

        One that is too much with those of the other requests is answered with 503. A body with another charset than
        UTF-8 is answered with 400, unread; so are a URL and a form whose bytes are no UTF-8.
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
        # Only what the client takes counts, and not the time in which the server does something with it.
        waited = 0.0
        complete = False

        async def bounded() -> Message:
            nonlocal taken, held, waited, complete
            if complete:
                # What may still come is the end of the connection, which nobody needs to hurry.
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
        # The connection ends, since what is left of the body is not read.
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
    """The names and texts of a form while it comes, which must be UTF-8. Starlette reads any other as Latin-1."""

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
        """Take the next bytes. Raises ApiError (400), naming the field, for what is no UTF-8."""
        # Starlette's own parser answers what is no form at all.
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
    """The error of a charset that a request names, or of a URL, that is not UTF-8; None if both are."""
    close = {"Connection": "close"}
    # Starlette decodes a form's fields with any codec of Python that the client names; some take quadratic time.
    if charset.lower() not in _CHARSETS:
        named = charset[:40].decode("latin-1")
        return ApiError(400, f"Content-Type: expected the charset utf-8, got {named!r}", headers=close)
    try:
        for part in (scope.get("raw_path") or b"", scope.get("query_string", b"")):
            unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        return ApiError(400, "URL: expected UTF-8", code="invalid_value", headers=close)
    return None
