"""Streamed answers, which cancel their work when the client goes away or stalls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from voxcpm_server.errors import CLIENT_GONE, ApiError, as_api_error

Result = TypeVar("Result")


async def unless_gone(request: Request, work: Awaitable[Result]) -> Result:
    """The result of work, which is cancelled if the client goes away. The request's body must have been read.

    Raises what the work raises, and ApiError (499) if the client goes away.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(CLIENT_GONE, "the client has gone away")
        return working.result()
    finally:
        await ended(gone)
        await ended(working)


class StreamedResponse(Response):
    """An answer whose parts are sent as they are made.

    It ends if the client goes away or takes nothing for `patience` seconds. After an error the connection is closed
    before the end of the body, so that the client does not take a part for the whole. The generator of the parts is
    always closed, and `end` called: a generator that was never started does nothing when it is closed.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        media_type: str,
        headers: Mapping[str, str],
        patience: float,
        end: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(media_type=media_type, headers=dict(headers))
        del self.headers["content-length"]
        self._parts = parts
        self._patience = patience
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts."""
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            error = (
                sending.exception() if sending.done() else ApiError(CLIENT_GONE, "the client has gone away")
            )
        finally:
            await ended(gone)
            await ended(sending)
            await self._parts.aclose()
            await self._end()
        if error is not None:
            status = CLIENT_GONE if isinstance(error, OSError) else as_api_error(error).status_code
            scope.setdefault("state", {})["broken_off"] = status

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        # An earlier answer on this connection may still be unread.
        await self._taken(send(start))
        async for part in self._parts:
            await self._taken(send({"type": "http.response.body", "body": part, "more_body": True}))
        await self._taken(send({"type": "http.response.body", "body": b"", "more_body": False}))

    async def _taken(self, sent: Awaitable[None]) -> None:
        try:
            await asyncio.wait_for(sent, self._patience)
        except asyncio.TimeoutError:
            raise ApiError(CLIENT_GONE, f"the client took nothing for {self._patience:g} s") from None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def ended(task: asyncio.Future[Result]) -> None:
    """Cancel a task, if it is not done, and wait until it has ended."""
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
