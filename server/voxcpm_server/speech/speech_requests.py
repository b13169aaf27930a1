"""Speech requests, as JSON or multipart forms, and their conversion to requests of the runtime."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import fastapi
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect

from voxcpm_constants.bounds import MAX_SPEED, MIN_SPEED
from voxcpm_constants.user_folders import DEFAULT_VOICE
from voxcpm_runtime import GenerationOptions, InputError, Voice, VoxCPM
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.audio.reading import decode_audio
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.voices.recordings import Recordings
from voxcpm_server.errors import ApiError, client_closed
from voxcpm_server.settings import OPENAI_MODELS, OPENAI_VOICES
from voxcpm_server.speech.encoding import MAX_RATE, MIN_RATE, Encoder
from voxcpm_server.speech.served_bundles import ServedBundle

if TYPE_CHECKING:
    from typing import Self

    from voxcpm_server.speech.service import Service

RECORDINGS = ("prompt_audio", "reference_audio")  # Fields that hold audio files
_MAX_FIELDS = 64
_FORM = "multipart/form-data"
_OPTIONS = {
    "speed", "cfg_value", "inference_timesteps", "fast", "every_word", "zero_shot", "strict", "markup",
}  # fmt: skip
_RECORDING_RATES = (8_000, 192_000)
_TIMESTAMPS = "Report when each word is said: in sse events, or in a header, which makes the response whole."
_STREAM = "False: respond once everything is spoken. Bad attempts are then retried, and the length is known."


def _field(default: Any, description: str, **bounds: Any) -> Any:
    return Field(default, description=description, **bounds)


class VoiceId(BaseModel):
    """A voice as OpenAI's clients refer to an uploaded one."""

    id: str


class SpeechRequest(BaseModel):
    """A speech request. Fields up to `stream_format` are OpenAI's; unknown fields are ignored and reported."""

    model_config = ConfigDict(extra="allow")

    model: str = _field(
        OPENAI_MODELS[0], "Model name of a bundle, or an OpenAI model for the default bundle.", min_length=1
    )
    input: str = _field(..., "Text to speak.", min_length=1)
    voice: str | VoiceId = _field(
        DEFAULT_VOICE, "Stored or built-in voice, alias, or `default`, the checkpoint's own."
    )
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    speed: float = _field(1.0, "Speed factor, at the same pitch.", ge=MIN_SPEED, le=MAX_SPEED)
    instructions: str | None = _field(
        None, "Style in words (VoxCPM2); ignored and reported by other generations."
    )
    stream_format: Literal["audio", "sse"] = "audio"

    stream: bool = _field(True, _STREAM)
    word_timestamps: bool = _field(False, _TIMESTAMPS)
    sample_rate: int | None = _field(
        None, "Sample rate in Hz. Default: the voice's; 24000 for pcm.", ge=MIN_RATE, le=MAX_RATE
    )
    markup: bool = _field(False, "Whether `input` has markup: [pause 0.5s], [voice NAME], … or SSML.")
    seed: int | None = _field(None, "The same seed gives the same speech.", ge=0, le=2**53 - 1)
    cfg_value: float | None = _field(None, "Scale of classifier-free guidance.")
    inference_timesteps: int | None = _field(None, "Euler steps per patch.")
    fast: bool = _field(False, "Whether to use five Euler steps.")
    every_word: bool = _field(True, "Whether to wait for the last word, and to repair skips and repetitions.")
    zero_shot: bool = _field(
        False, "Whether the default voice is another one with each seed, not the checkpoint's."
    )
    clean: Literal["markdown", "none"] = _field(
        "markdown", "Whether to leave out Markdown's marks and the URLs of its links; not with `markup`."
    )
    strict: bool = _field(
        False, "Whether to refuse characters that the voice cannot say, instead of replacing them."
    )
    prompt_audio: str | None = _field(None, "Audio file to continue, in base64.")
    prompt_text: str | None = _field(None, "Transcript of `prompt_audio`.")
    reference_audio: str | None = _field(None, "Audio file of a voice to clone, in base64 (VoxCPM2).")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, document: Any) -> Any:
        """Some clients send null for omitted fields."""
        if not isinstance(document, dict):
            return document
        return {name: value for name, value in document.items() if value is not None}

    @field_validator("response_format", "stream_format", mode="before")
    @classmethod
    def _in_lower_case(cls, name: Any) -> Any:
        return name.lower() if isinstance(name, str) else name

    @field_validator("voice", mode="before")
    @classmethod
    def _check_voice(cls, voice: Any) -> Any:
        """Report one error, not one per member of the union."""
        name = voice.get("id") if isinstance(voice, dict) else voice
        if isinstance(name, str):
            return voice if name.strip() else DEFAULT_VOICE
        raise PydanticCustomError("voice", 'expected a name, or {"id": name}')

    @property
    def voice_name(self) -> str:
        """The voice's name."""
        return self.voice if isinstance(self.voice, str) else self.voice.id

    @classmethod
    def checked(cls, document: Any, where: str = "body") -> Self:
        """Validate a document. Raises RequestValidationError for an invalid field."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            errors = [{**one, "loc": (where, *one["loc"])} for one in error.errors(include_url=False)]
            raise RequestValidationError(errors) from None

    def attach(self, files: dict[str, bytes]) -> None:
        """Set audio files, by field."""
        for field, content in files.items():
            setattr(self, field, base64.b64encode(content).decode())

    def recordings(self) -> Iterator[tuple[str, bytes]]:
        """Each audio file's field and content. Raises ApiError (400) for invalid base64."""
        for field in RECORDINGS:
            text: str | None = getattr(self, field)
            if text is not None:
                encoded = text.partition(",")[2] if text.startswith("data:") else text
                try:
                    yield field, base64.b64decode("".join(encoded.split()), validate=True)
                except ValueError:
                    raise ApiError(400, f"{field}: expected an audio file in base64", param=field) from None

    def ignored_fields(self, served: ServedBundle) -> list[str]:
        """Fields that have no effect with this bundle."""
        ignored = sorted(self.model_extra or ())
        return [*ignored, "instructions"] if self.instructions and not served.takes_instructions else ignored

    def encoder(self, tts: VoxCPM) -> Encoder:
        """The encoder for its speech. Raises ApiError (400) for a rate that the format does not support."""
        return Encoder(self.response_format, tts.sample_rate, self.sample_rate)

    def runtime_request(
        self, service: Service, served: ServedBundle, max_characters: int, voice: Voice | None
    ) -> Request:
        """What the runtime is asked for. voice: the requested one; markup may name others of the service.

        Raises ApiError and InputError.
        """
        if (count := len(self.input)) > max_characters:
            message = f"input: expected at most {max_characters} characters, got {count}"
            raise ApiError(400, message, param="input", code="string_above_max_length")
        maximum = service.settings.max_recording_seconds
        audio = {field: decode_recording(content, field, maximum) for field, content in self.recordings()}
        if audio and self.voice_name in OPENAI_VOICES:
            # OpenAI's clients must name a voice; a recording overrides OpenAI's names.
            voice = None
        given = self.model_dump(include=_OPTIONS, exclude_none=True)
        if not self.markup and self.clean != "none":
            given["clean"] = self.clean
        return Request(
            text=self.input or None,  # None for streamed text
            recordings=Recordings(
                audio.get("prompt_audio"), self.prompt_text, audio.get("reference_audio"), voice
            ),
            control=self.instructions if self.instructions and served.takes_instructions else None,
            options=GenerationOptions(**given),
            seed=self.seed,
            find_voice=service.voices.finder(served.tts.built_in_voices) if self.markup else None,
        )


def decode_recording(content: bytes, field: str, max_seconds: float) -> tuple[Audio, int]:
    """Decode an audio file to samples (samples,) and rate in Hz. Raises ApiError if it is not audio, or too long."""
    try:
        return decode_audio(content, field, max_seconds=max_seconds, rates=_RECORDING_RATES)
    except InputError as error:
        raise ApiError(400, str(error), param=field) from None


async def speech_request(request: fastapi.Request) -> SpeechRequest:
    """Parse a request's JSON or form. Raises RequestValidationError and ApiError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == _FORM:
            return await _from_form(request)
        body = await request.body()
    except ClientDisconnect:
        raise client_closed() from None
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise _invalid(f"expected application/json or {_FORM}, got {kind or 'no content type'}")

    def from_json() -> SpeechRequest:
        if (document := json_object(body)) is None:
            raise _invalid("expected a JSON object")
        return SpeechRequest.checked(document)

    # Parsing megabytes would block the event loop.
    return await run_in_threadpool(from_json)


def json_object(content: str | bytes) -> dict[str, Any] | None:
    """The JSON object in a text; None if it is anything else."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


async def _from_form(request: fastapi.Request) -> SpeechRequest:
    largest = request.app.state.service.settings.max_upload_bytes
    fields: dict[str, str] = {}
    files: dict[str, bytes] = {}
    limits = {"max_files": len(RECORDINGS), "max_fields": _MAX_FIELDS, "max_part_size": largest}
    try:
        async with request.form(**limits) as form:
            for name, value in form.multi_items():
                if not isinstance(value, UploadFile):
                    # Forms send omitted fields as empty strings.
                    if value or name == "input":
                        fields[name] = value
                elif name in RECORDINGS:
                    files[name] = await value.read()
                else:
                    raise _invalid(f"expected text; only {' and '.join(RECORDINGS)} may be files", name)
    except (MultiPartException, ValueError) as error:
        raise _invalid(f"expected a form ({error})") from None
    body = SpeechRequest.checked(fields)
    await run_in_threadpool(body.attach, files)
    return body


def _invalid(message: str, *where: str) -> RequestValidationError:
    return RequestValidationError([{"type": "value_error", "loc": ("body", *where), "msg": message}])


def _request_body() -> dict[str, Any]:
    schema = SpeechRequest.model_json_schema()
    defined = schema.pop("$defs")
    schema["properties"]["voice"]["anyOf"] = [
        defined[one["$ref"].rpartition("/")[2]] if "$ref" in one else one
        for one in schema["properties"]["voice"]["anyOf"]
    ]
    form = {**schema, "properties": dict(schema["properties"])}
    for field in RECORDINGS:
        described = schema["properties"][field]["description"].replace(", in base64", "")
        form["properties"][field] = {"type": "string", "format": "binary", "description": described}
    form["properties"]["voice"] = {"type": "string", "default": DEFAULT_VOICE}
    return {"requestBody": {"required": True, "content": {
        "application/json": {"schema": schema}, _FORM: {"schema": form},
    }}}  # fmt: skip


REQUEST_BODY = _request_body()  # `openapi_extra` of the routes that take a speech request
