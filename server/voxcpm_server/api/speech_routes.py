"""Routes for speech, models and voices: OpenAI's, plus upload, preview and deletion of voices."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import fastapi
from fastapi import APIRouter, Depends, File, Form, Query, UploadFile
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from voxcpm_runtime import Voice, VoxCPM, Word
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.voices.recordings import Recordings
from voxcpm_server.api.openapi import CAPTION_RESPONSES, ERROR_RESPONSES, SPEECH_HEADERS
from voxcpm_server.errors import ApiError
from voxcpm_server.settings import OPENAI_MODELS
from voxcpm_server.speech.encoding import FORMATS, Encoder
from voxcpm_server.speech.service import Service, get_service
from voxcpm_server.speech.speech_requests import (
    REQUEST_BODY,
    SpeechRequest,
    decode_recording,
    speech_request,
)
from voxcpm_server.speech.speech_responses import Captions, cancel_on_disconnect, speak

speech = APIRouter(tags=["speech"])
lists = APIRouter(tags=["speech"])
captioned = APIRouter(tags=["speech"])
voices = APIRouter(tags=["voices"])
# Maximum ignored fields in the response header, and characters of each.
_MAX_REPORTED = 32
_PREVIEW_SEED = 0
_CONSENT = "consent"
TheService = Annotated[Service, Depends(get_service)]


async def _check_queue(request: fastapi.Request) -> None:
    get_service(request).queue.check(request.state.owner)


@speech.post(
    "/audio/speech",
    # Before the body is read, and again afterwards, since reading may take long.
    dependencies=[Depends(_check_queue)],
    response_class=Response,
    responses={
        **ERROR_RESPONSES,
        200: {
            "description": "The audio, streamed while it is generated.",
            "headers": SPEECH_HEADERS,
            "content": {form.content_type: {} for form in FORMATS.values()} | {"text/event-stream": {}},
        },
    },
    openapi_extra=REQUEST_BODY,
)
async def create_speech(
    body: Annotated[SpeechRequest, Depends(speech_request)], request: fastapi.Request, service: TheService
) -> Response:
    """Speak a text. The first bytes are sent once the first patch is generated."""
    return await respond(body, request, service)


async def respond(
    body: SpeechRequest, request: fastapi.Request, service: Service, captions: Captions | None = None
) -> Response:
    """The response to a speech request. captions: makes the JSON objects it consists of. Raises as `speak`."""
    service.queue.check(request.state.owner)
    with await service.bundles.lease(body.model) as served:
        ignored = await run_in_threadpool(body.ignored_fields, served)
        voice = await run_in_threadpool(service.voices.named, body.voice_name, served.tts.built_in_voices)
        maximum = service.settings.max_characters
        wanted = await run_in_threadpool(body.runtime_request, service, served, maximum, voice)
        encoder, events = body.encoder(served.tts), body.stream_format == "sse"
        # Headers precede the audio.
        whole = not body.stream or (body.word_timestamps and not events)
        response = await speak(
            request, served, wanted, encoder,
            events=events, whole=whole, timed=body.word_timestamps, captions=captions,
        )  # fmt: skip
    if ignored:
        # Client-supplied names must fit into a short ASCII header line.
        reported = [name[:_MAX_REPORTED] for name in ignored[:_MAX_REPORTED]]
        response.headers["X-Ignored-Fields"] = json.dumps(reported)
    return response


@captioned.post(
    "/dev/captioned_speech",
    dependencies=[Depends(_check_queue)],
    responses=CAPTION_RESPONSES,
    openapi_extra=REQUEST_BODY,
)
async def create_captioned_speech(
    body: Annotated[SpeechRequest, Depends(speech_request)], request: fastapi.Request, service: TheService
) -> Response:
    """Speak like Kokoro-FastAPI: base64 audio and word times, as one JSON object or a stream of lines."""
    if body.model not in service.bundles.names:  # such as kokoro
        body.model = OPENAI_MODELS[0]
    form = FORMATS[body.response_format].content_type

    def captions(data: bytes, words: Sequence[Word]) -> dict[str, Any]:
        timestamps = [{"word": word.text, "start_time": word.start, "end_time": word.end} for word in words]
        return {"audio": base64.b64encode(data).decode(), "audio_format": form, "timestamps": timestamps}

    return await respond(body, request, service, captions)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "voxcpm-coreml"}


@lists.get("/models", tags=["lists"])
async def list_models(service: TheService) -> dict[str, Any]:
    """List models: all bundles, the default one first, and OpenAI's names for it."""
    return {"object": "list", "data": [_model(name) for name in await service.bundles.named()]}


@lists.get("/models/{model}", tags=["lists"], responses={404: ERROR_RESPONSES[404]})
async def show_model(model: str, service: TheService) -> dict[str, Any]:
    """Show a model."""
    await service.bundles.find(model)
    return _model(model)


@lists.get("/audio/models", tags=["lists"])
async def list_speech_models(service: TheService) -> dict[str, Any]:
    """List models in the format that Open WebUI expects."""
    return {"models": [{"id": name, "name": name} for name in await service.bundles.named()]}


@lists.get("/audio/voices", tags=["lists"])
async def list_voices(service: TheService) -> dict[str, Any]:
    """List the names that `voice` accepts with the default bundle: the checkpoint's own, stored, built-in, aliases."""
    with await service.bundles.lease() as served:
        return {"voices": await run_in_threadpool(service.voices.listed, served.tts.built_in_voices)}


class VoiceDocument(BaseModel):
    """A stored or built-in voice."""

    id: str
    object: Literal["audio.voice"] = "audio.voice"
    name: str
    generation: str
    consent: bool  # whether the uploader stated the speaker's consent
    created: str | None
    prompt_seconds: float
    reference_seconds: float
    warnings: list[str] = []  # what is wrong with the recording, when it is created


def _document(voice: Voice, service: Service) -> VoiceDocument:
    provenance, seconds = voice.header.provenance, service.bundles.patch_seconds(voice)
    return VoiceDocument(
        id=voice.name, name=voice.name, generation=voice.header.generation,
        consent=provenance.get(_CONSENT) == "stated",
        created=provenance.get("created"),
        prompt_seconds=round(voice.prompt_patches * seconds, 3),
        reference_seconds=round(voice.reference_patches * seconds, 3),
        warnings=list(voice.faults),
    )  # fmt: skip


@voices.post("/audio/voices", responses={**ERROR_RESPONSES, 201: {"model": VoiceDocument}}, status_code=201)
async def create_voice(
    request: fastapi.Request,
    service: TheService,
    name: Annotated[str, Form(min_length=1)],
    audio_sample: Annotated[UploadFile, File(description="Audio file with a recording of the voice.")],
    consent: Annotated[bool, Form(description="Whether the speaker consents; must be true.")],
    transcript: Annotated[
        str | None, Form(description="Verbatim transcript of the recording; optional with VoxCPM2.")
    ] = None,
    model: Annotated[str | None, Form(description="Bundle whose AudioVAE encodes the voice.")] = None,
) -> VoiceDocument:
    """Create a voice from a recording and store it, along with the statement of consent."""
    service.queue.check(request.state.owner)
    if not consent:
        message = "consent: expected true: the speaker must consent to this voice"
        raise ApiError(400, message, param="consent")
    await run_in_threadpool(service.voices.check_new, name, service.settings.max_voices)
    content = await audio_sample.read()
    with await service.bundles.lease(model) as served:
        creation = _create_voice(service, served.tts, request.state.owner, name, content, transcript)
        return _document(await cancel_on_disconnect(request.receive, creation), service)


async def _create_voice(
    service: Service, tts: VoxCPM, owner: str, name: str, content: bytes, transcript: str | None
) -> Voice:
    """Create and store a voice. Encoding runs step models, so it takes a turn like speech."""
    digest, maximum = hashlib.sha256(content).hexdigest(), service.settings.max_recording_seconds
    provenance = {"prompt" if transcript else "reference": "upload", "sha256": digest, _CONSENT: "stated"}
    recording = await run_in_threadpool(decode_recording, content, "audio_sample", maximum)

    def create() -> Voice:
        voice = tts.create_voice(recording, transcript, name=name, provenance=provenance)
        return service.voices.add(voice, service.settings.max_voices)

    turn = await service.queue.enter(owner)
    try:
        return await run_in_threadpool(create)
    finally:
        turn.leave()


@voices.get("/audio/voices/{name}", responses=ERROR_RESPONSES)
async def show_voice(name: str, service: TheService) -> VoiceDocument:
    """Show a stored or built-in voice."""
    with await service.bundles.lease() as served:
        voice = await run_in_threadpool(service.voices.shown, name, served.tts.built_in_voices)
        return _document(voice, service)


@voices.delete("/audio/voices/{name}", responses=ERROR_RESPONSES)
async def delete_voice(name: str, service: TheService) -> dict[str, Any]:
    """Delete a stored voice."""
    with await service.bundles.lease() as served:
        await run_in_threadpool(service.voices.remove, name, served.tts.built_in_voices)
    return {"id": name, "object": "audio.voice.deleted", "deleted": True}


@voices.get(
    "/audio/voices/{name}/preview",
    response_class=Response,
    responses={**ERROR_RESPONSES, 200: {"content": {"audio/mpeg": {}}, "headers": SPEECH_HEADERS}},
)
async def preview_voice(
    name: str,
    request: fastapi.Request,
    service: TheService,
    model: Annotated[str | None, Query(description="Bundle to speak with. Default: the first.")] = None,
) -> Response:
    """Speak a fixed sentence with a voice or alias, as MP3. The seed is fixed."""
    with await service.bundles.lease(model) as served:
        voice = await run_in_threadpool(service.voices.named, name, served.tts.built_in_voices)
        spoken = Recordings(voice=voice)
        wanted = Request(service.settings.preview_text, spoken, seed=_PREVIEW_SEED)
        return await speak(request, served, wanted, Encoder("mp3", served.tts.sample_rate))
