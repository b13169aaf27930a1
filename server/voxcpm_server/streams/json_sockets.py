"""Conversations over a websocket, in messages of JSON."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from voxcpm_server.errors import CLIENT_GONE, ApiError, client_gone, close_code
from voxcpm_server.middleware.authentication import KEY_PROTOCOL
from voxcpm_server.speech.service import Service, service_of
from voxcpm_server.streams.conversations import CLOSED, ENDING, Conversation

# Codes that a websocket is closed with (RFC 6455, 7.4).
_NORMAL, _RESTART = 1000, 1012
_MAX_REASON_BYTES = 123


class JsonSocket(Conversation):
    """A conversation over a websocket that has been accepted."""

    def __init__(self, websocket: WebSocket, service: Service, idle_seconds: float | None = None) -> None:
        super().__init__(service, websocket.state.owner, idle_seconds)
        self.websocket = websocket

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None if the client has gone. Raises ApiError if it is not a JSON object."""
        message = await self.websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")
        if text is None:
            raise ApiError(400, "expected messages of text, in JSON; got bytes")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise ApiError(400, "expected a JSON object in each message")
        return document

    async def send(self, message: dict[str, Any] | bytes) -> None:
        """Send a JSON object or bytes. Raises ApiError (499) if the client does not take it."""
        try:
            if isinstance(message, bytes):
                await self.in_time(self.websocket.send_bytes(message))
            else:
                await self.in_time(self.websocket.send_text(json.dumps(message)))
        except (WebSocketDisconnect, RuntimeError):
            raise client_gone() from None

    def last_words(self, error: ApiError) -> dict[str, Any]:
        """The message of an error, after which the websocket is closed."""
        return error.document

    async def end(self, error: ApiError | None) -> None:
        """Send the error, and close the websocket with a matching code."""
        code, reason = _NORMAL, ""
        if error is not None:
            code = _RESTART if error.code == ENDING else close_code(error)
            reason = error.detail.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
            await self.websocket.send_text(json.dumps(self.last_words(error)))
        await self.websocket.close(code, reason)


async def serve_websocket(websocket: WebSocket, begun: Callable[[], Awaitable[JsonSocket]]) -> None:
    """Serve a websocket to its end. begun: makes the conversation; its errors answer the handshake."""
    conversations = service_of(websocket).conversations
    # Handshakes count: `begun` may wait until a bundle is loaded.
    with conversations.admitted(websocket.state.owner):
        conversation = await begun()
    conversations.check(conversation.owner)
    # Browsers insist that a subprotocol is accepted if any is offered.
    offered = websocket.scope.get("subprotocols", [])
    protocol = next((name for name in offered if not name.startswith(KEY_PROTOCOL)), None)
    try:
        await websocket.accept(protocol)
        status = await conversation.serve()
    except WebSocketDisconnect:
        status = CLIENT_GONE
    except ApiError as error:
        status = error.status_code
        await conversation.end(error)
    if status != CLOSED:
        websocket.scope.setdefault("state", {})["broken_off"] = status
