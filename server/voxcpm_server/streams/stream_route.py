"""The websocket `/v1/audio/stream` for streamed text, in this server's own protocol (docs/server-api.md)."""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, WebSocket
from pydantic import Field

from voxcpm_runtime import InputError
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.words.words import missed_words
from voxcpm_server.errors import ApiError, as_api_error
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.served_bundles import ServedBundle
from voxcpm_server.speech.service import Service, get_service
from voxcpm_server.speech.speech_requests import SpeechRequest
from voxcpm_server.speech.speech_responses import timestamps
from voxcpm_server.streams.conversations import JsonSocket, serve_websocket
from voxcpm_server.streams.sessions import Flushed, SessionStream

router = APIRouter()
# Fields of an HTTP request that have no effect here.
_WITHOUT_EFFECT = (
    "input", "markup", "stream", "stream_format", "prompt_audio", "prompt_text", "reference_audio"
)  # fmt: skip


class StartMessage(SpeechRequest):
    """The first message of a speech: the applicable fields of an HTTP request."""

    type: Literal["start"]
    model: str | None = None  # type: ignore[assignment]
    input: str = ""
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "pcm"
    audio: Annotated[
        Literal["binary", "base64"], Field(description="Audio as binary messages, or as JSON with base64.")
    ] = "binary"


@router.websocket("/audio/stream")
async def stream_speech(websocket: WebSocket) -> None:
    """Speak streamed text, one speech after another."""
    service = get_service(websocket)

    async def open_conversation() -> JsonSocket:
        return _Speaker(websocket, service)

    await serve_websocket(websocket, service, open_conversation)


class _Speaker(JsonSocket):
    """Handles start, text, flush, end and cancel."""

    def __init__(self, websocket: WebSocket, service: Service) -> None:
        super().__init__(websocket, service)
        self._stream: SessionStream | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    async def handle(self, message: dict[str, Any]) -> bool:
        kind = message.get("type")
        if kind == "start":
            await self._start(message)
        elif kind == "cancel":
            # A speech that has just ended was already reported.
            if self._stream is not None and self._task is not None:
                await self.cancel_speech(self._task)
                if self._stream is not None:
                    await self._done(self._stream, cancelled=True)
        elif kind not in ("text", "flush", "end"):
            raise ApiError(400, "type: expected start, text, flush, end or cancel", param="type")
        elif self._stream is None or self._ended:
            raise ApiError(400, f"{kind}: no speech in progress; send start first", param="type")
        elif kind == "flush":
            self._stream.flush()
        elif kind == "end":
            await self._finish(self._stream)
        elif isinstance(text := message.get("text"), str):
            self._stream.push(text)
        else:
            raise ApiError(400, "text: expected a string", param="text")
        return True

    async def _start(self, message: dict[str, Any]) -> None:
        body = StartMessage.checked(message, "start")
        if self._stream is not None:
            raise ApiError(400, "start: a speech is in progress; wait for done", param="type")
        ignored = sorted(body.model_extra or ())
        ignored += sorted(body.model_fields_set & set(_WITHOUT_EFFECT))
        bare = body.model_copy(update={**dict.fromkeys(_WITHOUT_EFFECT), "input": ""})

        def prepare(served: ServedBundle) -> tuple[Request, Encoder]:
            if body.instructions and not served.takes_instructions:
                ignored.append("instructions")
            voice = self.service.voices.named(body.voice_name, served.tts.built_in_voices)
            maximum = self.service.settings.max_characters
            request = bare.runtime_request(self.service, served, maximum, voice)
            return request, body.encoder(served.tts)

        self._stream = stream = await self.open_stream(body.model, prepare)
        self._ended = False
        stream.timed = body.word_timestamps
        self._task = self.speak(stream, partial(self._speech, stream, in_base64=body.audio == "base64"))
        rate, content_type = stream.encoder.sample_rate, stream.encoder.format.content_type
        started = {"type": "started", "seed": stream.seed, "sample_rate": rate, "content_type": content_type}
        await self.send({**started, "ignored_fields": ignored})

    async def _finish(self, stream: SessionStream) -> None:
        """End the text. Nothing to say in it ends only this speech: an agent's next answer may have words."""
        self._ended = True
        try:
            stream.finish()
        except InputError as error:
            if stream.has_words:
                raise
            if self._task is not None:
                await self.cancel_speech(self._task)
            self._stream = None
            await self.send(self.error_message(as_api_error(error, "text")))

    async def _speech(self, stream: SessionStream, *, in_base64: bool) -> None:
        header = stream.encoder.header()
        async for piece in stream:
            if isinstance(piece, Flushed):
                await self.send({"type": "flushed", "seconds": stream.encoder.seconds})
            elif data := header + piece.data:
                header = b""
                encoded = {"type": "audio", "audio": base64.b64encode(data).decode()} if in_base64 else data
                await self.send(encoded)
                if piece.words:
                    await self.send({"type": "timestamps", "words": timestamps(piece.words)})
        await self._done(stream, cancelled=False)

    async def _done(self, stream: SessionStream, *, cancelled: bool) -> None:
        self._stream = None
        seconds = stream.encoder.seconds
        done = {"type": "done", "seed": stream.seed, "seconds": seconds, "cancelled": cancelled}
        await self.send({**done, **missed_words(stream.missed, stream.replaced)})

    def error_message(self, error: ApiError) -> dict[str, Any]:
        return {"type": "error", **super().error_message(error)}
