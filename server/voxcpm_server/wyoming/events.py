"""Wyoming's events on a stream: a line of JSON, then data and payload, bounded in size and time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from wyoming.event import Event, async_write_event

from voxcpm_server.errors import ApiError

MAX_LINE_BYTES = 65_536
"""Maximum length of the line before an event's data."""


class EventStream:
    """The events of one connection.

    max_bytes: of an event's data, and of its payload, which is ignored. patience: timeout in seconds for the rest of
    an event that has begun.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_bytes: int, patience: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._maximum = max_bytes
        self._patience = patience

    async def receive(self) -> Event | None:
        """The next event; None at the end. Raises ApiError if it is malformed, too large or incomplete."""
        try:
            first = await self._reader.read(1)
            return await asyncio.wait_for(self._rest(first), self._patience) if first else None
        except asyncio.TimeoutError:
            raise ApiError(408, f"no more of the event came for {self._patience:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def _rest(self, first: bytes) -> Event:
        try:
            line = first + await self._reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            raise ApiError(
                413, f"expected a line of at most {MAX_LINE_BYTES} bytes before an event"
            ) from None
        head = _object(line)
        data = head.get("data") or {}
        if size := self._size(head, "data_length"):
            more = _object(await self._reader.readexactly(size))
            data = {**data, **more} if isinstance(data, dict) else data
        if size := self._size(head, "payload_length"):
            await self._reader.readexactly(size)
        kind = head.get("type")
        if not isinstance(kind, str) or not isinstance(data, dict):
            raise ApiError(
                400, "expected an event of Wyoming: an object with a type, and data that are an object"
            )
        return Event(kind, data)

    def _size(self, head: dict[str, Any], name: str) -> int:
        size = head.get(name) or 0
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ApiError(400, f"{name}: expected a number of bytes")
        if size > self._maximum:
            raise ApiError(413, f"{name}: expected at most {self._maximum} bytes, got {size}")
        return size

    async def send(self, event: Event) -> None:
        """Send an event, after those before it. Raises OSError if the client has gone."""
        if self._writer.is_closing():
            raise ConnectionResetError
        await async_write_event(event, self._writer)

    def close(self) -> None:
        """Close the connection after pending data is sent; a client that does not read is cut off."""
        self._writer.close()
        asyncio.get_running_loop().call_later(self._patience, self.abort)

    def abort(self) -> None:
        """Close the connection at once, and drop pending data."""
        self._writer.transport.abort()


def _object(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ApiError(400, "expected an event of Wyoming: a line with a JSON object")
    return document
