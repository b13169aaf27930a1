"""Connections over which text comes in fragments: bounded in number, and ended in order when the server ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from voxcpm_server.errors import ApiError

ENDING = "server_ending"
"""Code of the error that a connection is closed with because the server ends."""
_RETRY = {"Retry-After": "10"}


class Ending(Protocol):
    """A conversation, as far as its end goes."""

    owner: str

    def end_when_silent(self) -> None:
        """End the conversation as soon as nothing is spoken."""

    def fail(self, error: Exception) -> None:
        """End the conversation with this error."""


class OpenConversations:
    """Counts the open conversations of a server, and ends them when the server ends."""

    def __init__(self, maximum: int, max_per_key: int) -> None:
        self._maximum = maximum
        self._max_per_key = max_per_key
        self._open: set[Ending] = set()
        self._owners: Counter[str] = Counter()
        self._draining = False

    def __len__(self) -> int:
        return len(self._open)

    @contextlib.contextmanager
    def admitted(self, conversation: Ending) -> Iterator[None]:
        """Count a conversation while it lasts. Raises ApiError: 503 if too many are open or the server ends, 429."""
        self.check(conversation.owner)
        self._open.add(conversation)
        self._owners[conversation.owner] += 1
        try:
            yield
        finally:
            self._open.discard(conversation)
            self._owners[conversation.owner] -= 1
            self._owners += Counter()  # forgets those without one

    def check(self, owner: str) -> None:
        """Raises what `admitted` would raise for this key."""
        if self._draining:
            raise server_ends()
        if len(self._open) >= self._maximum:
            raise ApiError(
                503,
                f"{len(self._open)} conversations are open already, the most that may",
                headers=_RETRY,
            )
        if self._owners[owner] >= self._max_per_key:
            raise ApiError(
                429,
                f"{self._owners[owner]} conversations of this key are open already, the most that may",
                headers=_RETRY,
            )

    async def drain(self, seconds: float, hurried: Callable[[], bool]) -> None:
        """Take no new conversations, let those that speak finish for so long, or until `hurried`, and end the rest."""
        self._draining = True
        for conversation in list(self._open):
            conversation.end_when_silent()
        until = time.monotonic() + seconds
        while self._open and time.monotonic() < until and not hurried():
            await asyncio.sleep(0.05)
        for conversation in list(self._open):
            conversation.fail(server_ends())
        # The last words of each, which a client that does not read must not hold up.
        until = time.monotonic() + 1
        while self._open and time.monotonic() < until:
            await asyncio.sleep(0.05)


def server_ends() -> ApiError:
    """The error of whoever comes, or still talks, while the server ends."""
    return ApiError(503, "the server ends; connect again", code=ENDING, headers=_RETRY)
