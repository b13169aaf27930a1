"""ElevenLabs' multi-context websocket, `/v1/text-to-speech/{voice}/multi-stream-input`, for voice agents."""

from __future__ import annotations

import asyncio
import base64
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, WebSocket
from starlette.concurrency import run_in_threadpool

from voxcpm_server.errors import ApiError, as_api_error
from voxcpm_server.rooms import Room
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.served_bundles import ServedBundle
from voxcpm_server.speech.service import Service, get_service
from voxcpm_server.speech.speech_requests import MAX_SPEED, MIN_SPEED
from voxcpm_server.streams.conversations import JsonSocket, serve_websocket
from voxcpm_server.streams.sessions import Flushed, SessionStream

router = APIRouter()
_MAX_OPEN = 5  # contexts per connection, as at ElevenLabs
_MAX_CLOSED = 5  # closed contexts still speaking: an interrupted agent closes one and ignores the rest of it
_DEFAULT_CONTEXT = "default"
_MAX_ID = 200
_MAX_DIGITS = 10
_DEFAULT_FORMAT = "mp3_44100_128"
_FORMAT = re.compile(r"(mp3|opus|pcm|wav)_([0-9]{4,5})(_[0-9]+)?")
# Typical for English, until the first sentence gives the pace of this voice.
_TYPICAL_CHARACTERS_PER_SECOND = 15.0


class Alignment:
    """Estimates character times: spreads each sentence over its audio at the pace of the previous sentence.

    A slower sentence runs out of characters early; the rest of a faster one is placed at its end.
    restarts: whether times count from the last `take` instead of the beginning.
    """

    def __init__(self, *, restarts: bool = True) -> None:
        self._restarts = restarts
        self._pace = _TYPICAL_CHARACTERS_PER_SECOND
        self._sentence = -1
        self._text = ""
        self._placed = 0
        self._seconds = 0.0
        # Characters with their start in seconds, since the beginning or the last `take`.
        self._starts: list[tuple[str, float]] = []
        self._now = 0.0

    def add(self, sentence: int, text: str, seconds: float) -> None:
        """Place the characters of a piece of audio. sentence, text: the sentence's index and text."""
        if sentence != self._sentence:
            self.finish()
            self._sentence, self._text = sentence, text
        until = min(len(self._text), round((self._seconds + seconds) * self._pace))
        more = self._text[self._placed : until]
        self._starts += [(c, self._now + seconds * i / len(more)) for i, c in enumerate(more)]
        self._placed += len(more)
        self._seconds += seconds
        self._now += seconds

    def finish(self) -> None:
        """Place the rest of the sentence at its end, and measure its pace."""
        self._starts += [(character, self._now) for character in self._text[self._placed :]]
        if self._seconds and self._text:
            self._pace = len(self._text) / self._seconds
        self._text, self._placed, self._seconds = "", 0, 0.0

    def take(self) -> dict[str, Any] | None:
        """Characters placed since the last call, with times in milliseconds; None if there are none."""
        placed, now = self._starts, self._now
        if not placed:
            return None
        self._starts, self._now = [], 0.0 if self._restarts else now
        starts = [round(1000 * at) for _, at in placed]
        ends = [*starts[1:], round(1000 * now)]
        return {
            "chars": [character for character, _ in placed],
            "charStartTimesMs": starts,
            "charDurationsMs": [end - start for start, end in zip(starts, ends, strict=True)],
        }


def _invalid(field: str, message: str) -> ApiError:
    return ApiError(400, f"{field}: {message}", param=field.partition(".")[0])


class ElevenLabs(Room):
    """Entry point of this room."""

    routers = (router,)


@dataclass
class _Context:
    id: str
    stream: SessionStream
    alignment: Alignment
    closed: bool = False  # whether the client sends no more text


@router.websocket("/text-to-speech/{voice}/multi-stream-input")
async def stream_contexts(websocket: WebSocket, voice: str) -> None:
    """Speak streamed text for several contexts."""
    service = get_service(websocket)

    async def open_conversation() -> JsonSocket:
        # ElevenLabs' own model names select the default bundle.
        model = websocket.query_params.get("model_id")
        with await service.bundles.lease(model if model in service.bundles.names else None) as served:
            return await run_in_threadpool(_MultiContextSocket, websocket, service, served, voice)

    await serve_websocket(websocket, service, open_conversation)


class _MultiContextSocket(JsonSocket):
    """Handles the messages of all contexts. Raises ApiError for an invalid voice, format or seed in the URL."""

    def __init__(self, websocket: WebSocket, service: Service, served: ServedBundle, voice: str) -> None:
        query = websocket.query_params
        output_format = query.get("output_format", _DEFAULT_FORMAT)
        form = _FORMAT.fullmatch(output_format)
        if form is None:
            expected = "expected a format such as pcm_24000, mp3_44100_128 or opus_48000_32"
            raise _invalid("output_format", f"{expected}, got {output_format!r}")
        self._codec, self._rate = form[1], int(form[2])
        # Reject an invalid rate now, not with the first context.
        Encoder(self._codec, served.tts.sample_rate, self._rate)
        seed = query.get("seed")
        if seed is not None and (not seed.isdecimal() or len(seed) > _MAX_DIGITS):
            raise _invalid("seed", f"expected a non-negative integer, got {seed[:20]!r}")
        self._arguments: dict[str, Any] = {} if seed is None else {"seed": int(seed)}
        if (named := service.voices.named(voice, served.tts.built_in_voices)) is not None:
            self._arguments["voice"] = named
        super().__init__(websocket, service)
        self._model = served.name
        # Pipecat accumulates times per message; LiveKit sets this to get times since the start.
        self._times_restart = query.get("sync_alignment") != "true"
        # By id, in the order in which they were opened or closed.
        self._contexts: dict[str, _Context] = {}

    async def handle(self, message: dict[str, Any]) -> bool:
        if message.get("close_socket"):
            return False
        name = message.get("context_id") or message.get("contextId") or _DEFAULT_CONTEXT
        if not isinstance(name, str) or len(name) > _MAX_ID:
            raise _invalid("context_id", f"expected a string of at most {_MAX_ID} characters")
        try:
            await self._handle(name, message)
        except Exception as exception:  # noqa: BLE001 - an error ends one context only
            await self._fail_context(name, as_api_error(exception, "text"))
        return True

    async def _handle(self, name: str, message: dict[str, Any]) -> None:
        text = message.get("text") or ""
        if not isinstance(text, str):
            raise _invalid("text", "expected a string")
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
            raise _invalid("context_id", f"too many contexts: {_MAX_OPEN} are open")
        speed = voice_settings.get("speed") if isinstance(voice_settings, dict) else None
        speed = 1.0 if speed is None else speed
        if type(speed) not in (int, float) or not MIN_SPEED <= speed <= MAX_SPEED:
            raise _invalid("voice_settings.speed", f"expected {MIN_SPEED} to {MAX_SPEED:g}")

        def prepare(served: ServedBundle) -> tuple[dict[str, Any], Encoder]:
            arguments = {**self._arguments, "speed": float(speed)}
            return arguments, Encoder(self._codec, served.tts.sample_rate, self._rate)

        stream = await self.open_stream(self._model, prepare)
        context = self._contexts[name] = _Context(name, stream, Alignment(restarts=self._times_restart))
        self.speak(stream, partial(self._speech, context))
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
                    alignment.finish()
                    await self._send_audio(context, b"")
                    continue
                data, header = header + piece.data, b""
                if piece.sentence >= 0:
                    alignment.add(piece.sentence, piece.text, piece.seconds)
                else:
                    alignment.finish()
                if data:
                    await self._send_audio(context, data)
        except Exception as exception:  # noqa: BLE001 - see above
            error = as_api_error(exception, "text")
        if self._contexts.get(context.id) is not context:
            # Cancelled, and already reported as ended.
            return
        if error is not None:
            await self._fail_context(context.id, error)
            return
        await self._send_audio(context, b"")
        await self.send({"isFinal": True, "contextId": context.id})
        self._contexts.pop(context.id, None)

    async def _send_audio(self, context: _Context, data: bytes) -> None:
        aligned = context.alignment.take()
        if data or aligned:
            times = {"alignment": aligned, "normalizedAlignment": aligned}
            await self.send({"audio": base64.b64encode(data).decode(), **times, "contextId": context.id})

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
