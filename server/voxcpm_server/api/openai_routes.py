"""OpenAI's speech API: `POST /v1/audio/speech`, and the lists of models and voices that clients ask for."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from voxcpm_server.api.openapi import DOCUMENTED, SPEECH_HEADERS
from voxcpm_server.speech.encoding import FORMATS, Encoder
from voxcpm_server.speech.service import service_of
from voxcpm_server.speech.speech_answers import speak
from voxcpm_server.speech.speech_requests import DOCUMENTED_BODY, SpeechRequest, speech_request

router = APIRouter(tags=["speech"])
# Ignored fields that an answer names, and characters of each.
_MAX_TOLD = 32


async def _room_in_the_queue(request: Request) -> None:
    service_of(request).queue.check(request.state.owner)


@router.post(
    "/audio/speech",
    # Before its body is read; and again after that, which may have taken a while.
    dependencies=[Depends(_room_in_the_queue)],
    response_class=Response,
    responses={
        **DOCUMENTED,
        200: {
            "description": "The speech, as it is made.",
            "headers": SPEECH_HEADERS,
            "content": {form.content_type: {} for form in FORMATS.values()} | {"text/event-stream": {}},
        },
    },
    openapi_extra=DOCUMENTED_BODY,
)
async def create_speech(
    asked: Annotated[SpeechRequest, Depends(speech_request)], request: Request
) -> Response:
    """Speak a text. The first bytes are sent when the first patch is spoken."""
    service = service_of(request)
    service.queue.check(request.state.owner)
    with await service.bundles.lease(asked.model) as served:
        ignored = await run_in_threadpool(asked.ignored_fields, served)
        voice = await run_in_threadpool(service.voices.named, asked.voice_name, served.built_in_voices)
        maximum = service.settings.max_characters
        given = await run_in_threadpool(asked.arguments, service.settings, served, maximum, voice)
        response = await speak(
            request,
            served,
            given,
            Encoder(asked.response_format, served.tts.sample_rate, asked.sample_rate, asked.speed),
            events=asked.stream_format == "sse",
            whole=not asked.stream,
        )
    if ignored:
        # Names come from the client, and a header is short and ASCII on one line.
        told = [name[:_MAX_TOLD] for name in ignored[:_MAX_TOLD]]
        response.headers["X-Ignored-Fields"] = json.dumps(told)
    return response


@router.get("/models", tags=["lists"])
async def list_models(request: Request) -> dict[str, Any]:
    """The models: the bundles, the default one first, and OpenAI's names for that."""
    names = await service_of(request).bundles.named()
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "voxcpm-coreml"} for name in names]
    return {"object": "list", "data": models}


@router.get("/models/{model}", tags=["lists"], responses={404: DOCUMENTED[404]})
async def show_model(model: str, request: Request) -> dict[str, Any]:
    """One of the models."""
    await service_of(request).bundles.find(model)
    return {"id": model, "object": "model", "created": 0, "owned_by": "voxcpm-coreml"}


@router.get("/audio/models", tags=["lists"])
async def list_speech_models(request: Request) -> dict[str, Any]:
    """The same, as Open WebUI asks for it."""
    names = await service_of(request).bundles.named()
    return {"models": [{"id": name, "name": name} for name in names]}


@router.get("/audio/voices", tags=["lists"])
async def list_voices(request: Request) -> dict[str, Any]:
    """All names that `voice` may have with the default bundle: the checkpoint's own, stored, built-in, and aliases."""
    service = service_of(request)
    voices = service.voices
    with await service.bundles.lease() as served:
        built_in = served.built_in_voices

    def documents() -> list[dict[str, Any]]:
        stored = voices.stored_names()
        return [
            {
                "id": name,
                "name": name,
                "stored": name in stored,
                "built_in": voices.is_built_in(name, built_in),
            }
            for name in voices.names(built_in)
        ]

    return {"voices": await run_in_threadpool(documents)}
