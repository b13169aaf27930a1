"""Connections over which text comes in fragments: nobody is waited for without end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

from voxcpm_server.errors import CLIENT_GONE, ApiError, as_api_error
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.served_bundles import Served
from voxcpm_server.speech.service import Service
from voxcpm_server.streams.open_conversations import server_ends
from voxcpm_server.streams.sessions import SessionStream

Result = TypeVar("Result")
IN_ORDER = 200
"""Status of a conversation that has ended in order."""


class Conversation(ABC):
    """One connection: messages come in, and speeches of its own, each a task, answer.

    owner: whose connection it is. idle_seconds: seconds without a message, while nothing is spoken, until it is closed.
    """

    def __init__(self, service: Service, owner: str, idle_seconds: float | None = None) -> None:
        self.service = service
        self.owner = owner
        self._idle_seconds = service.settings.idle_seconds if idle_seconds is None else idle_seconds
        self._active_at = time.monotonic()
        self._speeches: dict[asyncio.Task[None], SessionStream] = {}
        self._failure: Exception | None = None
        self._ends_when_silent = False
        self._changed = asyncio.Event()

    @abstractmethod
    async def receive(self) -> Any:
        """The next message; None if the client has gone. Raises ApiError for what is no message."""

    @abstractmethod
    async def handle(self, message: Any) -> bool:
        """Do what a message asks for; False if it ends the conversation."""

    @abstractmethod
    async def end(self, error: ApiError | None) -> None:
        """Say the last words, and close the connection. error: why, or None in order."""

    @property
    @abstractmethod
    def speaking(self) -> bool:
        """Whether something is being spoken, or waits for its turn to be."""

    async def serve(self) -> int:
        """Talk until either side ends. Returns the status for the metrics; raises ApiError if it is not admitted."""
        error: ApiError | None = None
        with self.service.conversations.admitted(self):
            try:
                await self._talk()
            except Exception as raised:  # noqa: BLE001 - whatever it is, the server goes on
                error = as_api_error(raised, "text")
            finally:
                for task in list(self._speeches):
                    await self.hush(task)
            if error is None or error.status_code != CLIENT_GONE:
                # The connection may be one that nobody reads.
                with contextlib.suppress(Exception):
                    await self.in_time(self.end(error))
        return IN_ORDER if error is None else error.status_code

    async def begun(
        self, model: str | None, asked: Callable[[Served], tuple[dict[str, Any], Encoder]]
    ) -> SessionStream:
        """A new speech, to which text can be pushed.

        model: the name of the bundle that speaks; None for the default one. asked: the arguments of `VoxCPM.session`
        for that bundle, and the encoder; called on a thread. Raises what it raises, and ApiError if the queue is full
        or the bundle cannot be loaded.
        """
        self.service.queue.check(self.owner)
        with await self.service.bundles.lease(model) as served:
            given, encoder = await run_in_threadpool(asked, served)
            return await self.service.sessions.begin(served, self.owner, given, encoder)

    def speak(self, stream: SessionStream, sending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Send a stream as a task, which ends with the conversation; its error ends the conversation.

        The stream is closed in any case.
        """

        async def speech() -> None:
            try:
                await sending
            finally:
                await asyncio.shield(stream.aclose())

        task = asyncio.ensure_future(speech())
        self._speeches[task] = stream

        def ended(_: object) -> None:
            del self._speeches[task]
            # One that never began must not warn that it was forgotten.
            sending.close()
            if not task.cancelled() and isinstance(error := task.exception(), Exception):
                self.fail(error)
            self._changed.set()

        task.add_done_callback(ended)
        return task

    async def hush(self, task: asyncio.Task[None]) -> None:
        """End a speech at its next Euler step."""
        stream = self._speeches.get(task)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if stream is not None:
            # A task that is cancelled before it begins runs not at all.
            await stream.aclose()

    def fail(self, error: Exception) -> None:
        """End the conversation with this error."""
        self._failure = self._failure or error
        self._changed.set()

    def end_when_silent(self) -> None:
        """End the conversation as soon as nothing is spoken."""
        self._ends_when_silent = True
        self._changed.set()

    async def in_time(self, sent: Awaitable[Result]) -> Result:
        """What is sent to the client, who must take it in time. Raises ApiError (499)."""
        patience = self.service.settings.client_timeout
        try:
            result = await asyncio.wait_for(sent, patience)
        except asyncio.TimeoutError:
            raise ApiError(CLIENT_GONE, f"the client took nothing for {patience:g} s") from None
        except OSError:
            raise ApiError(CLIENT_GONE, "the client has gone away") from None
        self._active_at = time.monotonic()
        return result

    async def _talk(self) -> None:
        receiving: asyncio.Future[Any] | None = None
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            while True:
                if receiving is None:
                    receiving = asyncio.ensure_future(self.receive())
                idle = time.monotonic() - self._active_at
                await asyncio.wait(
                    {receiving, changed},
                    timeout=max(0.0, self._idle_seconds - idle) or 0.1,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if self._failure is not None:
                    raise self._failure
                if changed.done():
                    self._changed.clear()
                    changed = asyncio.ensure_future(self._changed.wait())
                if receiving.done():
                    message = receiving.result()
                    receiving = None
                    self._active_at = time.monotonic()
                    if message is None:
                        raise ApiError(CLIENT_GONE, "the client has gone away")
                    if not await self.handle(message):
                        return
                elif self._ends_when_silent and not self._speeches:
                    raise server_ends()
                elif not self.speaking and time.monotonic() - self._active_at >= self._idle_seconds:
                    raise ApiError(408, f"no message came for {self._idle_seconds:g} s")
        finally:
            for task in (receiving, changed):
                if task is not None:
                    task.cancel()
