"""Connections that stream text in: limited in number, with timeouts, and drained at shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.websockets import WebSocket, WebSocketDisconnect

from voxcpm_runtime.speech.request import Request
from voxcpm_server.errors import CLIENT_CLOSED, ApiError, as_api_error, client_closed
from voxcpm_server.middleware.authentication import KEY_PROTOCOL
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.served_bundles import ServedBundle
from voxcpm_server.speech.speaking import send_with_timeout
from voxcpm_server.speech.speech_requests import json_object
from voxcpm_server.streams.open_conversations import SHUTTING_DOWN, shutting_down
from voxcpm_server.streams.sessions import SessionStream

if TYPE_CHECKING:
    from voxcpm_server.speech.service import Service

_CLOSED = 200  # status of a conversation that closed without an error
# Websocket close codes (RFC 6455, 7.4).
_NORMAL, _RESTART = 1000, 1012
_MAX_REASON_BYTES = 123


class Conversation(ABC):
    """A client's connection: receives messages, and runs each speech as a task."""

    def __init__(self, service: Service, owner: str) -> None:
        self.service = service
        self.owner = owner
        self._idle_seconds = service.settings.idle_seconds
        self._active_at = time.monotonic()
        self._speeches: dict[asyncio.Task[None], SessionStream] = {}
        self._failure: Exception | None = None
        self._ends_when_idle = service.conversations.draining
        self._changed = asyncio.Event()

    @abstractmethod
    async def receive(self) -> Any:
        """The next message; None if the client disconnected. Raises ApiError for a malformed one."""

    @abstractmethod
    async def handle(self, message: Any) -> bool:
        """Process a message. Returns False to end the conversation."""

    @abstractmethod
    async def end(self, error: ApiError | None) -> None:
        """Send the last message and close the connection. error: why, if not a normal end."""

    async def serve(self) -> int:
        """Run until either side closes, and return the status for metrics."""
        error: ApiError | None = None
        self.service.conversations.active.add(self)
        try:
            await self._run()
        except Exception as exception:  # noqa: BLE001 - no error of a connection may reach the server
            error = as_api_error(exception, "text")
        finally:
            for task in list(self._speeches):
                await self.cancel_speech(task)
            self.service.conversations.active.discard(self)
        if error is None or error.status_code != CLIENT_CLOSED:
            # The client may not be reading.
            with contextlib.suppress(Exception):
                await self.send_with_timeout(self.end(error))
        return _CLOSED if error is None else error.status_code

    async def open_stream(
        self, model: str | None, prepare: Callable[[ServedBundle], tuple[Request, Encoder]]
    ) -> SessionStream:
        """Start a speech, to which text can be pushed.

        model: the bundle's name; None for the default. prepare: returns the request, without a text, and the
        encoder, on a thread. Raises what it raises, and ApiError if the queue is full or the bundle cannot be loaded.
        """
        self.service.queue.check(self.owner)
        with await self.service.bundles.lease(model) as served:
            request, encoder = await run_in_threadpool(prepare, served)
            return await SessionStream.open(self.service, served, self.owner, request, encoder)

    def speak(self, stream: SessionStream, send: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run `send` in a task, then close the stream. An error ends the conversation, whose end cancels the task."""

        async def speech() -> None:
            try:
                await send()
            finally:
                await asyncio.shield(stream.aclose())

        def ended(task: asyncio.Task[None]) -> None:
            del self._speeches[task]
            if not task.cancelled() and isinstance(error := task.exception(), Exception):
                self.fail(error)
            self._changed.set()

        task = asyncio.create_task(speech())
        self._speeches[task] = stream
        task.add_done_callback(ended)
        return task

    async def cancel_speech(self, task: asyncio.Task[None]) -> None:
        """Cancel a speech at its next Euler step."""
        stream = self._speeches.get(task)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if stream is not None:
            # The task may have been cancelled before it started.
            await stream.aclose()

    def fail(self, error: Exception) -> None:
        """End the conversation with this error."""
        self._failure = self._failure or error
        self._changed.set()

    def end_when_idle(self) -> None:
        """End the conversation once nothing is being spoken."""
        self._ends_when_idle = True
        self._changed.set()

    async def send_with_timeout(self, sent: Awaitable[None]) -> None:
        """Await a send with a timeout. Raises ApiError (499) if the client does not read."""
        try:
            await send_with_timeout(sent, self.service.settings.client_timeout)
        except (OSError, WebSocketDisconnect):
            raise client_closed() from None
        self._active_at = time.monotonic()

    async def _run(self) -> None:
        receiving: asyncio.Future[Any] | None = None
        try:
            while True:
                if receiving is None:
                    receiving = asyncio.ensure_future(self.receive())
                    receiving.add_done_callback(lambda _: self._changed.set())
                remaining = self._active_at + self._idle_seconds - time.monotonic()
                with anyio.move_on_after(max(0.1, remaining)):
                    await self._changed.wait()
                self._changed.clear()
                if self._failure is not None:
                    raise self._failure
                if receiving.done():
                    message = receiving.result()
                    receiving = None
                    self._active_at = time.monotonic()
                    if message is None:
                        raise client_closed()
                    if not await self.handle(message):
                        return
                elif self._ends_when_idle and not self._speeches:
                    raise shutting_down()
                elif any(stream.speaking for stream in self._speeches.values()):
                    continue
                elif time.monotonic() - self._active_at >= self._idle_seconds:
                    raise ApiError(408, f"idle for {self._idle_seconds:g} s")
        finally:
            if receiving is not None:
                receiving.cancel()


class JsonSocket(Conversation):
    """A conversation in JSON messages over a websocket."""

    def __init__(self, websocket: WebSocket, service: Service) -> None:
        super().__init__(service, websocket.state.owner)
        self._websocket = websocket

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None if the client disconnected. Raises ApiError if it is not a JSON object."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")
        if text is None:
            raise ApiError(400, "expected a JSON text message, got a binary one")
        if (document := json_object(text)) is None:
            raise ApiError(400, "expected a JSON object")
        return document

    async def send(self, message: dict[str, Any] | bytes) -> None:
        """Send a JSON object or bytes. Raises ApiError (499) if the client does not read."""
        try:
            if isinstance(message, bytes):
                await self.send_with_timeout(self._websocket.send_bytes(message))
            else:
                await self.send_with_timeout(self._websocket.send_text(json.dumps(message)))
        except RuntimeError:
            raise client_closed() from None

    def error_message(self, error: ApiError) -> dict[str, Any]:
        """The error message that is sent before the websocket closes."""
        return error.document

    async def end(self, error: ApiError | None) -> None:
        """Send the error, then close the websocket with a matching code."""
        code, reason = _NORMAL, ""
        if error is not None:
            code = _RESTART if error.code == SHUTTING_DOWN else error.close_code
            reason = error.detail.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
            await self._websocket.send_text(json.dumps(self.error_message(error)))
        await self._websocket.close(code, reason)


async def serve_websocket(
    websocket: WebSocket, service: Service, open_: Callable[[], Awaitable[JsonSocket]]
) -> None:
    """Serve a websocket. open_: creates the conversation; its errors reject the handshake."""
    with service.conversations.admit(websocket.state.owner):
        # May wait for a bundle to load.
        conversation = await open_()
        # Browsers require that one of the offered subprotocols is accepted.
        offered = websocket.scope.get("subprotocols", [])
        protocol = next((name for name in offered if not name.startswith(KEY_PROTOCOL)), None)
        try:
            await websocket.accept(protocol)
            status = await conversation.serve()
        except WebSocketDisconnect:
            status = CLIENT_CLOSED
    if status != _CLOSED:
        websocket.scope.setdefault("state", {})["final_status"] = status
