"""Voices over HTTP: upload, show, preview, delete. The list is one of OpenAI's routes."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from fastapi import APIRouter, File, Form, Query, Request, UploadFile
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from voxcpm_runtime import Voice, VoxCPM
from voxcpm_server.api.openapi import DOCUMENTED, SPEECH_HEADERS
from voxcpm_server.errors import ApiError
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.service import Service, service_of
from voxcpm_server.speech.speech_answers import speak, unless_gone
from voxcpm_server.speech.speech_requests import decoded_recording

router = APIRouter(tags=["voices"])
_PREVIEW_SEED = 0
_CONSENT = "consent"


class VoiceDocument(BaseModel):
    """A stored or built-in voice."""

    id: str
    object: Literal["audio.voice"] = "audio.voice"
    name: str
    generation: str
    consent: bool
    """Whether whoever uploaded it has stated the speaker's consent."""
    created: str | None
    """Date, if known."""
    prompt_seconds: float
    reference_seconds: float


@router.post("/audio/voices", responses={**DOCUMENTED, 201: {"model": VoiceDocument}}, status_code=201)
async def create_voice(
    request: Request,
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
    service = service_of(request)
    service.queue.check(request.state.owner)
    if not consent:
        raise ApiError(
            400, "consent: expected true: the speaker must have agreed to this voice", param="consent"
        )
    await run_in_threadpool(service.voices.check_new, name, service.settings.max_voices)
    content = await audio_sample.read()
    with await service.bundles.lease(model) as served:
        making = _made(service, served.tts, request.state.owner, name, content, transcript)
        return _document(await unless_gone(request.receive, making), service)


async def _made(
    service: Service, tts: VoxCPM, owner: str, name: str, content: bytes, transcript: str | None
) -> Voice:
    """The stored voice. Encoding takes the step models, and so a turn as any speech."""
    settings = service.settings
    recording = await run_in_threadpool(
        decoded_recording, content, "audio_sample", settings.max_recording_seconds
    )
    provenance = {
        "prompt" if transcript else "reference": "upload",
        "sha256": hashlib.sha256(content).hexdigest(),
        _CONSENT: "stated",
    }
    turn = await service.queue.enter(owner)
    try:
        voice = await run_in_threadpool(
            tts.create_voice, recording, transcript, name=name, provenance=provenance
        )
        return await run_in_threadpool(service.voices.add, voice, settings.max_voices)
    finally:
        turn.leave()


@router.get("/audio/voices/{name}", responses=DOCUMENTED)
async def show_voice(name: str, request: Request) -> VoiceDocument:
    """A stored voice, or a built-in one."""
    service = service_of(request)
    with await service.bundles.lease() as served:
        voice = await run_in_threadpool(service.voices.shown, name, served.built_in_voices)
    return _document(voice, service)


@router.delete("/audio/voices/{name}", responses=DOCUMENTED)
async def delete_voice(name: str, request: Request) -> dict[str, Any]:
    """Delete a stored voice."""
    service = service_of(request)
    with await service.bundles.lease() as served:
        await run_in_threadpool(service.voices.remove, name, served.built_in_voices)
    return {"id": name, "object": "audio.voice.deleted", "deleted": True}


@router.get(
    "/audio/voices/{name}/preview",
    response_class=Response,
    responses={**DOCUMENTED, 200: {"content": {"audio/mpeg": {}}, "headers": SPEECH_HEADERS}},
)
async def preview_voice(
    name: str,
    request: Request,
    model: Annotated[str | None, Query(description="The bundle that speaks; by default the first.")] = None,
) -> Response:
    """A sentence in a voice or alias, as MP3; the same each time."""
    service = service_of(request)
    with await service.bundles.lease(model) as served:
        voice = await run_in_threadpool(service.voices.named, name, served.built_in_voices)
        given = {"text": service.settings.preview_text, "seed": _PREVIEW_SEED, "voice": voice}
        return await speak(request, served, given, Encoder("mp3", served.tts.sample_rate))


def _document(voice: Voice, service: Service) -> VoiceDocument:
    seconds = service.bundles.patch_seconds(voice.header.generation)
    return VoiceDocument(
        id=voice.name,
        name=voice.name,
        generation=voice.header.generation,
        consent=voice.header.provenance.get(_CONSENT) == "stated",
        created=voice.header.provenance.get("created"),
        prompt_seconds=round(voice.prompt_patches * seconds, 3),
        reference_seconds=round(voice.reference_patches * seconds, 3),
    )
