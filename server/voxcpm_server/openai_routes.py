"""OpenAI's speech API: `POST /v1/audio/speech`, and the lists of models and voices that clients ask for."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from voxcpm_server.encoding import FORMATS, Encoder
from voxcpm_server.errors import DOCUMENTED, as_api_error
from voxcpm_server.served_bundles import Served
from voxcpm_server.service import Service, service_of
from voxcpm_server.speaking import SpeechStream
from voxcpm_server.speech_requests import DOCUMENTED_BODY, SpeechRequest, speech_request
from voxcpm_server.streaming import StreamedResponse, unless_gone

router = APIRouter(tags=["speech"])
# Ignored fields that an answer names, and characters of each.
_MOST_TOLD = 32


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
        given = await run_in_threadpool(arguments, asked, service, served)
        response = await speak(
            request,
            served,
            given,
            Encoder(asked.response_format, served.speeches.sample_rate, asked.sample_rate, asked.speed),
            events=asked.stream_format == "sse",
            whole=not asked.stream,
        )
    if ignored:
        # Names come from the client, and a header is short and ASCII on one line.
        told = [name[:_MOST_TOLD] for name in ignored[:_MOST_TOLD]]
        response.headers["X-Ignored-Fields"] = json.dumps(told)
    return response


async def speak(
    request: Request,
    served: Served,
    given: dict[str, Any],
    encoder: Encoder,
    *,
    events: bool = False,
    whole: bool = False,
) -> Response:
    """The answer that speaks, as server-sent events, or as the audio itself; `whole`: when all is spoken.

    served: the bundle, which stays open until all is spoken. given: arguments of `VoxCPM.speak`.
    Raises ApiError and what `VoxCPM.speak` raises, as long as no audio was sent.
    """
    service = service_of(request)
    began = time.perf_counter()
    speech = served.speeches.begin(request.state.owner, given, whole=whole, began=began)
    stream = await unless_gone(request, speech)
    stream.when_done(served.hold())
    headers = {
        "X-Seed": str(stream.seed),
        "X-Sample-Rate": str(encoder.sample_rate),
        "Cache-Control": "no-store",
    }
    if events:
        parts = _events(stream, encoder)
        return StreamedResponse(parts, "text/event-stream", headers, service.settings.client_timeout)
    if not whole:
        parts = _audio(stream, encoder)
        return StreamedResponse(parts, encoder.format.content_type, headers, service.settings.client_timeout)
    body = b"".join([part async for part in _encoded(stream, encoder)])
    headers["X-Audio-Duration"] = f"{encoder.samples / encoder.sample_rate:.3f}"
    return Response(encoder.header(encoder.samples) + body, 200, headers, encoder.format.content_type)


async def _encoded(stream: SpeechStream, encoder: Encoder) -> AsyncGenerator[bytes, None]:
    """The encoded speech without a header; it closes the stream. Codecs work on threads: a long piece takes seconds."""
    try:
        async for piece in stream:
            if data := await run_in_threadpool(encoder.encode, piece):
                yield data
        if data := await run_in_threadpool(encoder.finish):
            yield data
    finally:
        await stream.aclose()


async def _audio(stream: SpeechStream, encoder: Encoder) -> AsyncGenerator[bytes, None]:
    header = encoder.header()
    # The generator within is closed when this one is, and not when it is collected.
    async with aclosing(_encoded(stream, encoder)) as parts:
        async for data in parts:
            yield header + data
            header = b""


async def _events(stream: SpeechStream, encoder: Encoder) -> AsyncGenerator[bytes, None]:
    """Server-sent events as OpenAI's: deltas of audio in base64, then `done` with what was used."""
    try:
        async with aclosing(_audio(stream, encoder)) as parts:
            async for data in parts:
                yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
    except Exception as error:  # noqa: BLE001 - the status is sent already, so it is told as an event
        yield _event({"type": "error", **as_api_error(error).document})
        return
    tokens = sum(segment.target_tokens for segment in stream.plan.segments)
    usage = {"input_tokens": tokens, "output_tokens": stream.patches, "total_tokens": tokens + stream.patches}
    yield _event({"type": "speech.audio.done", "usage": usage})
    yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


def arguments(asked: SpeechRequest, service: Service, served: Served) -> dict[str, Any]:
    """The arguments of `VoxCPM.speak`. Raises ApiError and InputError."""
    given = asked.arguments(service.settings, served, service.settings.max_characters)
    voice = service.voices.named(asked.voice_name)
    return given if voice is None else {**given, "voice": voice}


@router.get("/models", tags=["lists"])
async def list_models(request: Request) -> dict[str, Any]:
    """The models: the bundles, the default one first, and OpenAI's names for that."""
    names = await service_of(request).bundles.named()
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "voxcpm-coreml"} for name in names]
    return {"object": "list", "data": models}


@router.get("/models/{model}", tags=["lists"], responses={404: DOCUMENTED[404]})
async def show_model(model: str, request: Request) -> dict[str, Any]:
    """One of the models."""
    await service_of(request).bundles.check(model)
    return {"id": model, "object": "model", "created": 0, "owned_by": "voxcpm-coreml"}


@router.get("/audio/models", tags=["lists"])
async def list_speech_models(request: Request) -> dict[str, Any]:
    """The same, as Open WebUI asks for it."""
    names = await service_of(request).bundles.named()
    return {"models": [{"id": name, "name": name} for name in names]}


@router.get("/audio/voices", tags=["lists"])
async def list_voices(request: Request) -> dict[str, Any]:
    """All names that `voice` may have: the checkpoint's own voice, those stored, and aliases."""
    voices = service_of(request).voices
    names, stored = await run_in_threadpool(lambda: (voices.names(), voices.store.names()))
    return {"voices": [{"id": name, "name": name, "stored": name in stored} for name in names]}
