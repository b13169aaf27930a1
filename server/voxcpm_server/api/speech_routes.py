"""OpenAI's speech API: `POST /v1/audio/speech`, the lists of models and voices, and voices: upload, preview, delete."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, File, Form, Query, Request, UploadFile
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from voxcpm_runtime import Voice, VoxCPM
from voxcpm_server.api.openapi import DOCUMENTED, SPEECH_HEADERS
from voxcpm_server.errors import ApiError
from voxcpm_server.speech.encoding import FORMATS, Encoder
from voxcpm_server.speech.service import Service, service_of
from voxcpm_server.speech.speech_answers import speak, unless_gone
from voxcpm_server.speech.speech_requests import (
    DOCUMENTED_BODY,
    SpeechRequest,
    decoded_recording,
    speech_request,
)

speech = APIRouter(tags=["speech"])
voices = APIRouter(tags=["voices"])
# Ignored fields that an answer names, and characters of each.
_MAX_TOLD = 32
_PREVIEW_SEED = 0
_CONSENT = "consent"
TheService = Annotated[Service, Depends(service_of)]


async def _room_in_the_queue(request: Request) -> None:
    service_of(request).queue.check(request.state.owner)


@speech.post(
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
    asked: Annotated[SpeechRequest, Depends(speech_request)], request: Request, service: TheService
) -> Response:
    """Speak a text. The first bytes are sent when the first patch is spoken."""
    service.queue.check(request.state.owner)
    with await service.bundles.lease(asked.model) as served:
        ignored = await run_in_threadpool(asked.ignored_fields, served)
        voice = await run_in_threadpool(service.voices.named, asked.voice_name, served.tts.built_in_voices)
        maximum = service.settings.max_characters
        given = await run_in_threadpool(asked.arguments, service.settings, served, maximum, voice)
        encoder, events = asked.encoder(served.tts), asked.stream_format == "sse"
        response = await speak(request, served, given, encoder, events=events, whole=not asked.stream)
    if ignored:
        # Names come from the client, and a header is short and ASCII on one line.
        told = [name[:_MAX_TOLD] for name in ignored[:_MAX_TOLD]]
        response.headers["X-Ignored-Fields"] = json.dumps(told)
    return response


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "voxcpm-coreml"}


@speech.get("/models", tags=["lists"])
async def list_models(service: TheService) -> dict[str, Any]:
    """The models: the bundles, the default one first, and OpenAI's names for that."""
    return {"object": "list", "data": [_model(name) for name in await service.bundles.named()]}


@speech.get("/models/{model}", tags=["lists"], responses={404: DOCUMENTED[404]})
async def show_model(model: str, service: TheService) -> dict[str, Any]:
    """One of the models."""
    await service.bundles.find(model)
    return _model(model)


@speech.get("/audio/models", tags=["lists"])
async def list_speech_models(service: TheService) -> dict[str, Any]:
    """The same, as Open WebUI asks for it."""
    return {"models": [{"id": name, "name": name} for name in await service.bundles.named()]}


@speech.get("/audio/voices", tags=["lists"])
async def list_voices(service: TheService) -> dict[str, Any]:
    """All names that `voice` may have with the default bundle: the checkpoint's own, stored, built-in, and aliases."""
    with await service.bundles.lease() as served:
        return {"voices": await run_in_threadpool(service.voices.listed, served.tts.built_in_voices)}


class VoiceDocument(BaseModel):
    """A stored or built-in voice."""

    id: str
    object: Literal["audio.voice"] = "audio.voice"
    name: str
    generation: str
    consent: bool  # whether whoever uploaded it has stated the speaker's consent
    created: str | None
    prompt_seconds: float
    reference_seconds: float


def _document(voice: Voice, service: Service) -> VoiceDocument:
    generation, provenance = voice.header.generation, voice.header.provenance
    seconds = service.bundles.patch_seconds(generation)
    return VoiceDocument(
        id=voice.name, name=voice.name, generation=generation,
        consent=provenance.get(_CONSENT) == "stated",
        created=provenance.get("created"),
        prompt_seconds=round(voice.prompt_patches * seconds, 3),
        reference_seconds=round(voice.reference_patches * seconds, 3),
    )  # fmt: skip


@voices.post("/audio/voices", responses={**DOCUMENTED, 201: {"model": VoiceDocument}}, status_code=201)
async def create_voice(
    request: Request,
    service: TheService,
    name: Annotated[str, Form(min_length=1)],
    audio_sample: Annotated[UploadFile, File(description="A recording of the voice: an audio file.")],
    consent: Annotated[bool, Form(description="Whether the speaker has agreed; it must be true.")],
    transcript: Annotated[
        str | None, Form(description="What is said in it, word for word; required before VoxCPM2.")
    ] = None,
    model: Annotated[
        str | None, Form(description="The bundle that encodes it; a voice is for its like.")
    ] = None,
) -> VoiceDocument:
    """Make a voice from a recording and store it under a name. The statement of consent is stored with it."""
    service.queue.check(request.state.owner)
    if not consent:
        message = "consent: expected true: the speaker must have agreed to this voice"
        raise ApiError(400, message, param="consent")
    await run_in_threadpool(service.voices.check_new, name, service.settings.max_voices)
    content = await audio_sample.read()
    with await service.bundles.lease(model) as served:
        making = _made(service, served.tts, request.state.owner, name, content, transcript)
        return _document(await unless_gone(request.receive, making), service)


async def _made(
    service: Service, tts: VoxCPM, owner: str, name: str, content: bytes, transcript: str | None
) -> Voice:
    """The stored voice. Encoding takes the step models, and so a turn as any speech."""
    digest, maximum = hashlib.sha256(content).hexdigest(), service.settings.max_recording_seconds
    provenance = {"prompt" if transcript else "reference": "upload", "sha256": digest, _CONSENT: "stated"}
    recording = await run_in_threadpool(decoded_recording, content, "audio_sample", maximum)

    def made() -> Voice:
        voice = tts.create_voice(recording, transcript, name=name, provenance=provenance)
        return service.voices.add(voice, service.settings.max_voices)

    turn = await service.queue.enter(owner)
    try:
        return await run_in_threadpool(made)
    finally:
        turn.leave()


@voices.get("/audio/voices/{name}", responses=DOCUMENTED)
async def show_voice(name: str, service: TheService) -> VoiceDocument:
    """A stored voice, or a built-in one."""
    with await service.bundles.lease() as served:
        voice = await run_in_threadpool(service.voices.shown, name, served.tts.built_in_voices)
    return _document(voice, service)


@voices.delete("/audio/voices/{name}", responses=DOCUMENTED)
async def delete_voice(name: str, service: TheService) -> dict[str, Any]:
    """Delete a stored voice."""
    with await service.bundles.lease() as served:
        await run_in_threadpool(service.voices.remove, name, served.tts.built_in_voices)
    return {"id": name, "object": "audio.voice.deleted", "deleted": True}


@voices.get(
    "/audio/voices/{name}/preview",
    response_class=Response,
    responses={**DOCUMENTED, 200: {"content": {"audio/mpeg": {}}, "headers": SPEECH_HEADERS}},
)
async def preview_voice(
    name: str,
    request: Request,
    service: TheService,
    model: Annotated[str | None, Query(description="The bundle that speaks; by default the first.")] = None,
) -> Response:
    """A sentence in a voice or alias, as MP3; the same each time."""
    with await service.bundles.lease(model) as served:
        voice = await run_in_threadpool(service.voices.named, name, served.tts.built_in_voices)
        given = {"text": service.settings.preview_text, "seed": _PREVIEW_SEED, "voice": voice}
        return await speak(request, served, given, Encoder("mp3", served.tts.sample_rate))
