"""ElevenLabs' routes for speech, with and without timestamps, and its multi-context websocket for voice agents."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request, WebSocket
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from voxcpm_runtime import Word, character_times, missed_words
from voxcpm_server.api.openapi import CAPTION_RESPONSES, ERROR_RESPONSES, SPEECH_HEADERS
from voxcpm_server.api.speech_routes import respond
from voxcpm_server.errors import ApiError, as_api_error
from voxcpm_server.rooms import Room
from voxcpm_server.settings import OPENAI_MODELS
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.served_bundles import ServedBundle
from voxcpm_server.speech.service import Service, get_service
from voxcpm_server.speech.speech_requests import MAX_SPEED, MIN_SPEED, SpeechRequest
from voxcpm_server.streams.conversations import JsonSocket, serve_websocket
from voxcpm_server.streams.sessions import Flushed, SessionStream, SpokenPiece

router, second_version = APIRouter(), APIRouter()
_AUDIO_RESPONSES = {**ERROR_RESPONSES, 200: {"content": {"audio/*": {}}, "headers": SPEECH_HEADERS}}
_MAX_OPEN = 5  # contexts per connection, as at ElevenLabs
_MAX_CLOSED = 5  # closed contexts still speaking: an interrupted agent closes one and ignores the rest of it
_DEFAULT_CONTEXT = "default"
_MAX_ID = 200
_MAX_DIGITS = 10
_DEFAULT_FORMAT = "mp3_44100_128"
_FORMAT = re.compile(r"(mp3|opus|pcm|wav|ulaw|alaw)_([0-9]{4,5})(_[0-9]+)?")


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
        text, self._text = _split_after(self._text, piece.words)
        origin = self._sent if self._restarts else 0.0
        starts = [round(1000 * (start - origin)) for start, _ in character_times(text, piece.words)]
        ends = [*starts[1:], round(1000 * (self._now - origin))]
        self._sent = self._now
        return {
            "chars": list(text),
            "charStartTimesMs": starts,
            "charDurationsMs": [end - start for start, end in zip(starts, ends, strict=True)],
        }


def _invalid(field: str, message: str) -> ApiError:
    return ApiError(400, f"{field}: {message}", param=field.partition(".")[0])


def _format(query: Mapping[str, str]) -> tuple[str, int]:
    """The codec and sample rate of `output_format`."""
    output_format = query.get("output_format", _DEFAULT_FORMAT)
    if (form := _FORMAT.fullmatch(output_format)) is None:
        expected = "expected a format such as pcm_24000, mp3_44100_128 or opus_48000_32"
        raise _invalid("output_format", f"{expected}, got {output_format!r}")
    return form[1], int(form[2])


def _speed(voice_settings: Any) -> float:
    speed = voice_settings.get("speed") if isinstance(voice_settings, dict) else None
    speed = 1.0 if speed is None else speed
    if type(speed) not in (int, float) or not MIN_SPEED <= speed <= MAX_SPEED:
        raise _invalid("voice_settings.speed", f"expected {MIN_SPEED} to {MAX_SPEED:g}")
    return float(speed)


def _split_after(text: str, words: Sequence[Word]) -> tuple[str, str]:
    """The text up to the last of the words and the white space after it, and the rest."""
    at = 0
    for word in words:
        at = max(at, text.find(word.text, at) + len(word.text))
    at = len(text) - len(text[at:].lstrip())
    return text[:at], text[at:]


class PlainRequest(BaseModel):
    """What to say. Other fields of ElevenLabs are ignored."""

    text: str
    model_id: str | None = None
    seed: int | None = None
    voice_settings: dict[str, Any] | None = None


class _Speech(SpeechRequest):
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm", "ulaw", "alaw"] = "mp3"  # type: ignore[assignment]


def _speech(voice: str, body: PlainRequest, request: Request, *, stream: bool) -> SpeechRequest:
    """The speech request that this one means. ElevenLabs' own model names mean the default bundle."""
    codec, rate = _format(request.query_params)
    model = body.model_id if body.model_id in get_service(request).bundles.names else OPENAI_MODELS[0]
    document: dict[str, Any] = {"model": model, "input": body.text, "voice": voice, "seed": body.seed}
    document |= {"response_format": codec, "sample_rate": rate, "speed": _speed(body.voice_settings)}
    return _Speech.checked(document | {"stream": stream})


@router.post("/text-to-speech/{voice}", tags=["speech"], response_class=Response, responses=_AUDIO_RESPONSES)
@router.post(
    "/text-to-speech/{voice}/stream", tags=["speech"], response_class=Response, responses=_AUDIO_RESPONSES
)
async def speak_plainly(voice: str, body: PlainRequest, request: Request) -> Response:
    """Speak. The response is audio, whole or streamed."""
    stream = request.url.path.endswith("/stream")
    return await respond(_speech(voice, body, request, stream=stream), request, get_service(request))


@router.post("/text-to-speech/{voice}/with-timestamps", tags=["speech"], responses=CAPTION_RESPONSES)
@router.post("/text-to-speech/{voice}/stream/with-timestamps", tags=["speech"], responses=CAPTION_RESPONSES)
async def speak_with_timestamps(voice: str, body: PlainRequest, request: Request) -> Response:
    """Speak, with the time of each character, as one JSON object or a stream of lines."""
    stream = request.url.path.endswith("/stream/with-timestamps")
    rest = body.text

    def captions(data: bytes, words: Sequence[Word]) -> dict[str, Any]:
        nonlocal rest
        text, rest = _split_after(rest, words) if words else ("", rest)
        times = character_times(text, words)
        alignment = words and {
            "characters": list(text),
            "character_start_times_seconds": [round(start, 3) for start, _ in times],
            "character_end_times_seconds": [round(end, 3) for _, end in times],
        }
        both = {"alignment": alignment or None, "normalized_alignment": alignment or None}
        return {"audio_base64": base64.b64encode(data).decode(), **both}

    speech = _speech(voice, body, request, stream=stream)
    return await respond(speech, request, get_service(request), captions)


async def _voices(service: Service) -> list[dict[str, Any]]:
    with await service.bundles.lease() as served:
        listed = await run_in_threadpool(service.voices.listed, served.tts.built_in_voices)
    return [
        {
            "voice_id": one["id"], "name": one["name"], "description": one["sound"],
            "category": "cloned" if one["stored"] else "premade",
        }
        for one in listed
    ]  # fmt: skip


@router.get("/voices", tags=["lists"])
async def list_voices(request: Request) -> dict[str, Any]:
    """List voices in ElevenLabs' format."""
    return {"voices": await _voices(get_service(request))}


@router.get("/voices/{voice}", tags=["lists"], responses={404: ERROR_RESPONSES[404]})
async def show_voice(voice: str, request: Request) -> dict[str, Any]:
    """Show a voice in ElevenLabs' format."""
    for listed in await _voices(get_service(request)):
        if listed["voice_id"] == voice:
            return listed
    raise ApiError(404, f"voice: unknown voice {voice!r}; GET /v1/voices lists all", param="voice")


@second_version.get("/v2/voices", tags=["lists"])
async def search_voices(request: Request, search: str = "") -> dict[str, Any]:
    """List the voices whose names contain `search`, all on one page."""
    listed = [one for one in await _voices(get_service(request)) if search.lower() in one["name"].lower()]
    return {"voices": listed, "has_more": False, "total_count": len(listed), "next_page_token": None}


class _RouteWithKey(APIRoute):
    """A route of ElevenLabs' clients alone, where OpenAI has one at the same path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and "xi-api-key" not in Headers(scope=scope):
            return Match.NONE, {}
        return super().matches(scope)


models = APIRouter(route_class=_RouteWithKey)


@models.get("/models", include_in_schema=False)
async def list_models(request: Request) -> list[dict[str, Any]]:
    """List models in ElevenLabs' format."""
    names = await get_service(request).bundles.named()
    return [{"model_id": name, "name": name, "can_do_text_to_speech": True} for name in names]


class ElevenLabs(Room):
    """Entry point of this room."""

    first = (models,)
    routers = (router,)
    unprefixed = (second_version,)


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
        self._codec, self._rate = _format(query)
        # Reject an invalid rate now, not with the first context.
        Encoder(self._codec, served.tts.sample_rate, self._rate)
        seed = query.get("seed")
        if seed is not None and (not seed.isdecimal() or len(seed) > _MAX_DIGITS):
            raise _invalid("seed", f"expected a non-negative integer, got {seed[:20]!r}")
        self._arguments: dict[str, Any] = {"clean": "markdown"}
        if seed is not None:
            self._arguments["seed"] = int(seed)
        if (named := service.voices.named(voice, served.tts.built_in_voices)) is not None:
            self._arguments["voice"] = named
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
        speed = _speed(voice_settings)

        def prepare(served: ServedBundle) -> tuple[dict[str, Any], Encoder]:
            arguments = {**self._arguments, "speed": speed}
            return arguments, Encoder(self._codec, served.tts.sample_rate, self._rate)

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
        missed = missed_words((), context.stream.replaced)
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
