"""ElevenLabs' websockets: one text, or several contexts of a voice agent."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, WebSocket
from starlette.concurrency import run_in_threadpool

from voxcpm_runtime import GenerationOptions
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.voices.recordings import Recordings
from voxcpm_runtime.words.words import character_times, missed_words
from voxcpm_server.elevenlabs.fields import checked_speed, invalid_field, output_format, split_after
from voxcpm_server.errors import ApiError, as_api_error
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.served_bundles import ServedBundle
from voxcpm_server.speech.service import Service, get_service
from voxcpm_server.streams.conversations import JsonSocket, serve_websocket
from voxcpm_server.streams.sessions import Flushed, SessionStream, SpokenPiece

router = APIRouter()
_MAX_OPEN = 5  # contexts per connection, as at ElevenLabs
_MAX_CLOSED = 5  # closed contexts still speaking: an interrupted agent closes one and ignores the rest of it
_DEFAULT_CONTEXT = "default"
_MAX_ID = 200
_MAX_DIGITS = 10


class Alignment:
    """Character times of a context, in the websocket's format.

    restarts: whether times count from the end of the last message that has some, instead of the beginning.
    """

    def __init__(self, *, restarts: bool = True) -> None:
        self._restarts = restarts
        self._sentence = -1
        self._text = ""  # not aligned yet
        self._now = self._sent = 0.0

    def add(self, piece: SpokenPiece) -> dict[str, Any] | None:
        """The characters of the segment that ends with this piece, with times in milliseconds; otherwise None."""
        if piece.sentence > self._sentence:
            self._sentence, self._text = piece.sentence, self._text + piece.text
        self._now += piece.seconds
        if not piece.words:
            return None
        text, self._text = split_after(self._text, piece.words)
        origin = self._sent if self._restarts else 0.0
        starts = [round(1000 * (start - origin)) for start, _ in character_times(text, piece.words)]
        ends = [*starts[1:], round(1000 * (self._now - origin))]
        self._sent = self._now
        return {
            "chars": list(text),
            "charStartTimesMs": starts,
            "charDurationsMs": [end - start for start, end in zip(starts, ends, strict=True)],
        }


@dataclass
class _Context:
    id: str
    stream: SessionStream
    alignment: Alignment
    closed: bool = False  # whether the client sends no more text


@router.websocket("/text-to-speech/{voice}/multi-stream-input")
async def stream_contexts(websocket: WebSocket, voice: str) -> None:
    """Speak streamed text for several contexts."""
    await _serve(websocket, voice, _MultiContextSocket)


@router.websocket("/text-to-speech/{voice}/stream-input")
async def stream_input(websocket: WebSocket, voice: str) -> None:
    """Speak one streamed text."""
    await _serve(websocket, voice, _InputSocket)


async def _serve(websocket: WebSocket, voice: str, kind: type[_MultiContextSocket]) -> None:
    service = get_service(websocket)

    async def open_conversation() -> JsonSocket:
        # ElevenLabs' own model names select the default bundle.
        model = websocket.query_params.get("model_id")
        with await service.bundles.lease(model if model in service.bundles.names else None) as served:
            return await run_in_threadpool(kind, websocket, service, served, voice)

    await serve_websocket(websocket, service, open_conversation)


class _MultiContextSocket(JsonSocket):
    """Handles the messages of all contexts. Raises ApiError for an invalid voice, format or seed in the URL."""

    def __init__(self, websocket: WebSocket, service: Service, served: ServedBundle, voice: str) -> None:
        query = websocket.query_params
        self._codec, self._rate = output_format(query)
        # Reject an invalid rate now, not with the first context.
        Encoder(self._codec, served.tts.sample_rate, self._rate)
        seed = query.get("seed")
        if seed is not None and (not seed.isdecimal() or len(seed) > _MAX_DIGITS):
            raise invalid_field("seed", f"expected a non-negative integer, got {seed[:20]!r}")
        self._seed = None if seed is None else int(seed)
        self._voice = service.voices.named(voice, served.tts.built_in_voices)
        super().__init__(websocket, service)
        self._model = served.name
        # Pipecat accumulates times per message; LiveKit sets this to get times since the start.
        self._times_restart = query.get("sync_alignment") != "true"
        # By id, in the order in which they were opened or closed.
        self._contexts: dict[str, _Context] = {}
        self._latest: asyncio.Task[None] | None = None  # the latest context's speech

    async def handle(self, message: dict[str, Any]) -> bool:
        if message.get("close_socket"):
            return False
        name = message.get("context_id") or message.get("contextId") or _DEFAULT_CONTEXT
        if not isinstance(name, str) or len(name) > _MAX_ID:
            raise invalid_field("context_id", f"expected a string of at most {_MAX_ID} characters")
        try:
            await self._handle(name, message)
        except Exception as exception:  # noqa: BLE001 - an error ends one context only
            await self._fail_context(name, as_api_error(exception, "text"))
        return True

    async def _handle(self, name: str, message: dict[str, Any]) -> None:
        text = message.get("text") or ""
        if not isinstance(text, str):
            raise invalid_field("text", "expected a string")
        context = self._contexts.get(name)
        # Empty text is a keep-alive.
        if context is None and text:
            context = await self._begin(name, message.get("voice_settings"))
        if context is None or context.closed:
            return
        if text.strip() or context.stream.characters:
            context.stream.push(text)
        if message.get("close_context"):
            context.closed = True
            context.stream.finish()
            self._contexts[name] = self._contexts.pop(name)
            await self._cancel_oldest_closed()
        elif message.get("flush"):
            context.stream.flush()

    async def _begin(self, name: str, voice_settings: Any) -> _Context:
        if sum(not context.closed for context in self._contexts.values()) >= _MAX_OPEN:
            raise invalid_field("context_id", f"too many contexts: {_MAX_OPEN} are open")
        speed = checked_speed(voice_settings)

        def prepare(served: ServedBundle) -> tuple[Request, Encoder]:
            options = GenerationOptions(clean="markdown", speed=speed)
            request = Request(recordings=Recordings(voice=self._voice), options=options, seed=self._seed)
            return request, Encoder(self._codec, served.tts.sample_rate, self._rate)

        stream = await self.open_stream(self._model, prepare)
        stream.timed = True
        context = self._contexts[name] = _Context(name, stream, Alignment(restarts=self._times_restart))
        self._latest = self.speak(stream, partial(self._speech, context))
        return context

    async def _cancel_oldest_closed(self) -> None:
        closed = [context for context in self._contexts.values() if context.closed]
        if len(closed) > _MAX_CLOSED:
            del self._contexts[closed[0].id]
            await asyncio.shield(closed[0].stream.aclose())
            await self.send({"isFinal": True, "contextId": closed[0].id})

    async def _speech(self, context: _Context) -> None:
        """Send a context's speech. An error ends only this context, unless the client disconnected."""
        alignment, header = context.alignment, context.stream.encoder.header()
        error = None
        try:
            async for piece in context.stream:
                if isinstance(piece, Flushed):
                    continue
                data, header = header + piece.data, b""
                aligned = alignment.add(piece)
                if data or aligned:
                    times = {"alignment": aligned, "normalizedAlignment": aligned}
                    audio = base64.b64encode(data).decode()
                    await self.send({"audio": audio, **times, "contextId": context.id})
        except Exception as exception:  # noqa: BLE001 - see above
            error = as_api_error(exception, "text")
        if self._contexts.get(context.id) is not context:
            # Cancelled, and already reported as ended.
            return
        if error is not None:
            await self._fail_context(context.id, error)
            return
        missed = missed_words(context.stream.missed, context.stream.replaced)
        await self.send({"isFinal": True, "contextId": context.id, **missed})
        self._contexts.pop(context.id, None)

    async def _fail_context(self, name: str, error: ApiError) -> None:
        """Send a context's error and end. Raises ApiError if the client disconnected."""
        context = self._contexts.pop(name, None)
        if context is not None:
            context.closed = True
            await asyncio.shield(context.stream.aclose())
        await self.send({**self.error_message(error), "contextId": name})
        await self.send({"isFinal": True, "contextId": name})

    def error_message(self, error: ApiError) -> dict[str, Any]:
        """ElevenLabs' errors are a string; OpenAI's fields are added."""
        return {"error": error.detail, **error.document["error"]}


class _InputSocket(_MultiContextSocket):
    """Handles the messages of a single text, which ends with an empty `text`."""

    async def handle(self, message: dict[str, Any]) -> bool:
        ends = message.get("text") == ""
        message = {name: message.get(name) for name in ("text", "flush", "voice_settings")}
        await super().handle(message | {"close_context": ends})
        if ends and self._latest is not None:
            # The client sends nothing after this.
            await asyncio.wait({self._latest})
        return not ends

    async def send(self, message: dict[str, Any] | bytes) -> None:
        if isinstance(message, dict):
            message.pop("contextId", None)
        await super().send(message)
