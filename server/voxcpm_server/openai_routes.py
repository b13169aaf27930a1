"""OpenAI's speech API: `POST /v1/audio/speech`, and the lists of models and voices that clients ask for."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from voxcpm_server.encoding import FORMATS, GREATEST_RATE, LEAST_RATE, Encoder
from voxcpm_server.errors import DOCUMENTED, ApiError, as_api_error
from voxcpm_server.recordings import decoded_base64, decoded_recording
from voxcpm_server.service import Service, service_of
from voxcpm_server.settings import DEFAULT_VOICE
from voxcpm_server.speaking import SpeechStream
from voxcpm_server.streaming import StreamedResponse, unless_gone

router = APIRouter(tags=["speech"])
# Ignored fields that an answer names, and characters of each.
_MOST_TOLD = 32
LEAST_SPEED, GREATEST_SPEED = 0.25, 4.0


class VoiceId(BaseModel):
    """A voice as OpenAI's clients name one that was uploaded."""

    id: str


class SpeechRequest(BaseModel):
    """What to say, and how. The fields down to `stream_format` are OpenAI's; unknown ones are ignored, and told so."""

    model_config = ConfigDict(extra="allow")

    model: Annotated[str, Field(description="The bundle's name, or one of OpenAI's models.")]
    input: Annotated[str, Field(min_length=1, description="What to say.")]
    voice: Annotated[
        str | VoiceId, Field(description="A stored voice, an alias, or `default`, the checkpoint's own.")
    ] = DEFAULT_VOICE
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    speed: Annotated[
        float,
        Field(
            ge=LEAST_SPEED,
            le=GREATEST_SPEED,
            description="How many times faster it is played, at the same pitch.",
        ),
    ] = 1.0
    instructions: Annotated[
        str | None, Field(description="Style in words (VoxCPM2); other generations ignore it and say so.")
    ] = None
    stream_format: Literal["audio", "sse"] = "audio"

    stream: Annotated[
        bool,
        Field(
            description="False: answer when all is spoken. Then a bad attempt is spoken again, and the length is known."
        ),
    ] = True
    sample_rate: Annotated[
        int | None,
        Field(ge=LEAST_RATE, le=GREATEST_RATE, description="Hz. Default: the voice's; 24000 for pcm."),
    ] = None
    seed: Annotated[int | None, Field(ge=0, le=2**53 - 1, description="Same seed, same speech.")] = None
    cfg_value: Annotated[float | None, Field(description="Strength of classifier-free guidance.")] = None
    inference_timesteps: Annotated[int | None, Field(description="Euler steps of a patch.")] = None
    prompt_audio: Annotated[str | None, Field(description="Audio file to continue, in base64.")] = None
    prompt_text: Annotated[str | None, Field(description="What is said in `prompt_audio`.")] = None
    reference_audio: Annotated[
        str | None, Field(description="Audio file of a voice to speak with, in base64 (VoxCPM2).")
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """Some clients send null for what they leave out."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}

    @property
    def voice_name(self) -> str:
        """The name of the voice."""
        return self.voice if isinstance(self.voice, str) else self.voice.id


@router.post(
    "/audio/speech",
    response_class=Response,
    responses={
        **DOCUMENTED,
        200: {
            "description": "The speech, as it is made.",
            "content": {form.content_type: {} for form in FORMATS.values()} | {"text/event-stream": {}},
        },
    },
)
async def create_speech(asked: SpeechRequest, request: Request) -> Response:
    """Speak a text. The first bytes are sent when the first patch is spoken."""
    service = service_of(request)
    service.check_model(asked.model)
    service.queue.check(request.state.owner)
    ignored = sorted(asked.model_extra or ())
    if asked.instructions and not service.takes_instructions:
        ignored.append("instructions")
    given = await run_in_threadpool(arguments, asked, service)
    response = await speak(
        request,
        given,
        Encoder(asked.response_format, service.speeches.sample_rate, asked.sample_rate, asked.speed),
        events=asked.stream_format == "sse",
        whole=not asked.stream,
    )
    if ignored:
        # Names come from the client, and a header is short and ASCII on one line.
        told = [name[:_MOST_TOLD] for name in ignored[:_MOST_TOLD]]
        response.headers["X-Ignored-Fields"] = json.dumps(told)
    return response


async def speak(
    request: Request, given: dict[str, Any], encoder: Encoder, *, events: bool = False, whole: bool = False
) -> Response:
    """The answer that speaks, as server-sent events, or as the audio itself; `whole`: when all is spoken.

    given: arguments of `VoxCPM.speak`.
    Raises ApiError and what `VoxCPM.speak` raises, as long as no audio was sent.
    """
    service = service_of(request)
    began = time.perf_counter()
    speech = service.speeches.begin(request.state.owner, given, whole=whole, began=began)
    stream = await unless_gone(request, speech)
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


def arguments(asked: SpeechRequest, service: Service) -> dict[str, Any]:
    """The arguments of `VoxCPM.speak`. Raises ApiError and InputError."""
    settings = service.settings
    if len(asked.input) > settings.max_characters:
        raise ApiError(
            400,
            f"input: expected at most {settings.max_characters} characters, got {len(asked.input)}",
            param="input",
            code="string_above_max_length",
        )
    given: dict[str, Any] = {"text": asked.input, "seed": asked.seed}
    options = {"cfg_value": asked.cfg_value, "inference_timesteps": asked.inference_timesteps}
    given.update({name: value for name, value in options.items() if value is not None})
    recordings = {"prompt_wav_path": "prompt_audio", "reference_wav_path": "reference_audio"}
    for argument, field in recordings.items():
        if (encoded := getattr(asked, field)) is not None:
            content = decoded_base64(encoded, field)
            given[argument] = decoded_recording(content, field, settings.max_recording_seconds)
    given["prompt_text"] = asked.prompt_text
    voice = service.voices.named(asked.voice_name)
    if voice is not None:
        given["voice"] = voice
    if asked.instructions and service.takes_instructions:
        given["control"] = asked.instructions
    return given


@router.get("/models", tags=["lists"])
async def list_models(request: Request) -> dict[str, Any]:
    """The models: the bundle, and OpenAI's names for it."""
    names = service_of(request).model_names
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "voxcpm-coreml"} for name in names]
    return {"object": "list", "data": models}


@router.get("/models/{model}", tags=["lists"], responses={404: DOCUMENTED[404]})
async def show_model(model: str, request: Request) -> dict[str, Any]:
    """One of the models."""
    service_of(request).check_model(model)
    return {"id": model, "object": "model", "created": 0, "owned_by": "voxcpm-coreml"}


@router.get("/audio/models", tags=["lists"])
async def list_speech_models(request: Request) -> dict[str, Any]:
    """The same, as Open WebUI asks for it."""
    return {"models": [{"id": name, "name": name} for name in service_of(request).model_names]}


@router.get("/audio/voices", tags=["lists"])
async def list_voices(request: Request) -> dict[str, Any]:
    """All names that `voice` may have: the checkpoint's own voice, those stored, and aliases."""
    names = await run_in_threadpool(service_of(request).voices.names)
    return {"voices": [{"id": name, "name": name} for name in names]}
