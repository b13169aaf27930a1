"""ElevenLabs' HTTP routes: speech, with and without timestamps, voices and models."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from voxcpm_runtime import Word
from voxcpm_runtime.words.words import character_times
from voxcpm_server.api.openapi import CAPTION_RESPONSES, ERROR_RESPONSES, SPEECH_HEADERS
from voxcpm_server.api.speech_routes import respond
from voxcpm_server.elevenlabs import contexts
from voxcpm_server.elevenlabs.fields import checked_speed, output_format, split_after
from voxcpm_server.errors import ApiError
from voxcpm_server.rooms import Room
from voxcpm_server.settings import OPENAI_MODELS
from voxcpm_server.speech.service import Service, get_service
from voxcpm_server.speech.speech_requests import SpeechRequest

router, second_version = APIRouter(), APIRouter()
_AUDIO_RESPONSES = {**ERROR_RESPONSES, 200: {"content": {"audio/*": {}}, "headers": SPEECH_HEADERS}}


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
    codec, rate = output_format(request.query_params)
    model = body.model_id if body.model_id in get_service(request).bundles.names else OPENAI_MODELS[0]
    document: dict[str, Any] = {"model": model, "input": body.text, "voice": voice, "seed": body.seed}
    document |= {"response_format": codec, "sample_rate": rate, "speed": checked_speed(body.voice_settings)}
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
        text, rest = split_after(rest, words) if words else ("", rest)
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
    routers = (router, contexts.router)
    unprefixed = (second_version,)
