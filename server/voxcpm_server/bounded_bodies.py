"""Bodies of requests: not too large, in UTF-8, and not waited for without end."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxcpm_server.errors import ApiError
from voxcpm_server.settings import MEGABYTE, Settings

LEAST_BYTES_PER_SECOND = 10_000
"""How fast a body must come, beyond the patience that every client has once."""
_CHARSETS = (b"utf-8", b"utf8")


class BoundedBody:
    """An app whose requests' bodies are bounded in size and in time, and in UTF-8 if they name a charset.

    A websocket's messages are bounded in size; the time between them is its conversation's business.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        self._most = settings.max_upload_bytes
        self._most_of_message = settings.max_message_bytes
        self._patience = settings.client_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 413 for a body that is too large, unread if its header says so, and 408 for one that comes too slowly.

        A body with another charset than UTF-8 is answered with 400, unread.
        """
        if scope["type"] == "websocket":
            await self._app(scope, partial(self._message, receive), send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        # Starlette decodes a form's fields with any codec of Python that the client names; some take quadratic time.
        charset = parse_options_header(headers.get("content-type"))[1].get(b"charset", _CHARSETS[0])
        if charset.lower() not in _CHARSETS:
            named = charset[:40].decode("latin-1")
            refused = ApiError(
                400,
                f"Content-Type: expected the charset utf-8, got {named!r}",
                headers={"Connection": "close"},
            )
            await refused.response()(scope, receive, send)
            return
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self._most:
            await self._too_large(announced).response()(scope, receive, send)
            return
        taken = 0
        # Only what the client takes counts, and not the time in which the server does something with it.
        waited = 0.0
        complete = False

        async def bounded() -> Message:
            nonlocal taken, waited, complete
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
            if taken > self._most:
                raise self._too_large(f"more than {self._most}")
            if not complete and waited > self._patience + taken / LEAST_BYTES_PER_SECOND:
                raise self._too_slow(
                    f"expected {LEAST_BYTES_PER_SECOND} bytes of the body a second, got {taken} in {waited:.0f} s"
                )
            return message

        await self._app(scope, bounded, send)

    async def _message(self, receive: Receive) -> Message:
        """The next message of a websocket. Raises ApiError (413) for one that is too large."""
        message = await receive()
        size = max(len(message.get("text") or ""), len(message.get("bytes") or b""))
        if size > self._most_of_message:
            raise ApiError(413, f"expected messages of at most {self._most_of_message} bytes, got {size}")
        return message

    def _too_slow(self, reason: str) -> ApiError:
        return ApiError(408, reason, headers={"Connection": "close"})

    def _too_large(self, size: str) -> ApiError:
        # The connection ends, since what is left of the body is not read.
        return ApiError(
            413,
            f"expected a body of at most {self._most / MEGABYTE:g} MB, got {size} bytes",
            headers={"Connection": "close"},
        )
