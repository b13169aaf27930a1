"""The server's open conversations: limited in number, and drained at shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from voxcpm_server.errors import ApiError, check_capacity

SHUTTING_DOWN = "server_ending"
_RETRY_SECONDS = 10


class Drained(Protocol):
    """A conversation, which ends at shutdown."""

    def end_when_idle(self) -> None:
        """End it once nothing is spoken."""

    def fail(self, error: Exception) -> None:
        """End it now."""


class OpenConversations:
    """The server's open conversations: limited in number, and drained at shutdown."""

    def __init__(self, maximum: int, max_per_key: int) -> None:
        self._maximum, self._max_per_key = maximum, max_per_key
        self._owners: list[str] = []  # of conversations and handshakes
        self.active: set[Drained] = set()
        self.draining = False

    def __len__(self) -> int:
        return len(self._owners)

    @contextlib.contextmanager
    def admit(self, owner: str) -> Iterator[None]:
        """Count a conversation while it is open. Raises ApiError: 503 at shutdown; 503 or 429 if too many are open."""
        if self.draining:
            raise shutting_down()
        total, own = (len(self), self._maximum), (self._owners.count(owner), self._max_per_key)
        check_capacity(total, own, "too many conversations: {}{} are open", _RETRY_SECONDS)
        self._owners.append(owner)
        try:
            yield
        finally:
            self._owners.remove(owner)

    async def drain(self, seconds: float, forced: Callable[[], bool]) -> None:
        """Accept no new conversations, let speeches finish for `seconds` or until `forced`, then end the rest."""
        self.draining = True
        for conversation in self.active:
            conversation.end_when_idle()
        await self._wait(seconds, forced)
        for conversation in self.active:
            conversation.fail(shutting_down())
        # For the last messages; a client that does not read must not delay shutdown.
        await self._wait(1, lambda: False)

    async def _wait(self, seconds: float, forced: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while self._owners and time.monotonic() < until and not forced():
            await asyncio.sleep(0.05)


def shutting_down() -> ApiError:
    """The error of connections at shutdown."""
    retry = {"Retry-After": str(_RETRY_SECONDS)}
    return ApiError(503, "the server is shutting down; connect again", code=SHUTTING_DOWN, headers=retry)
