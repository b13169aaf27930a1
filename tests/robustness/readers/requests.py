"""Readers of what a server's clients send: speech as JSON and as a form, a voice to keep, events of Wyoming."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from robustness.mutations import mutated_bytes, mutated_text
from robustness.reader import Reader
from robustness.readers.bundles import changed_json
from robustness.readers.texts import recordings

_BOUNDARY = b"edge"
_FORM = f"multipart/form-data; boundary={_BOUNDARY.decode()}"


def _posted(
    path: str, body: bytes, kind: str
) -> tuple[dict[str, Any], Callable[[], Awaitable[dict[str, Any]]]]:
    """The scope of a request, and what receives its body."""
    headers = [
        (b"content-type", kind.encode("latin-1", "replace")),
        (b"content-length", str(len(body)).encode()),
    ]
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
        "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "headers": [(b"host", b"127.0.0.1"), *headers],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
    }  # fmt: skip
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        return await asyncio.get_running_loop().create_future()

    return scope, receive


def _speech(kind: str) -> Callable[[bytes], str | None]:
    """What reads a body as the request of a speech, with the arguments that follow from it."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException
    from starlette.requests import Request

    from voxcpm_constants.errors import InputError
    from voxcpm_server.errors import ApiError
    from voxcpm_server.rooms import AllSettings as Settings
    from voxcpm_server.speech.speech_requests import speech_request

    settings = Settings()
    app = SimpleNamespace(state=SimpleNamespace(service=SimpleNamespace(settings=settings)))
    served: Any = SimpleNamespace(takes_instructions=True)

    async def asked(body: bytes) -> None:
        scope, receive = _posted("/v1/audio/speech", body, kind)
        request = await speech_request(Request({**scope, "app": app}, receive))
        request.ignored_fields(served)
        request.arguments(settings, served, 4096, None)

    def read(body: bytes) -> str | None:
        try:
            asyncio.run(asked(body))
        except (RequestValidationError, InputError):
            return "422"
        except (ApiError, HTTPException) as error:
            if error.status_code >= 500:
                raise
            return str(error.status_code)
        return None

    return read


def speech_json(bundle: Path, folder: Path) -> Reader:  # noqa: ARG001
    document = {
        "model": "voxcpm", "input": "Yes.", "voice": {"id": "ada"}, "response_format": "wav", "speed": 1.0, "seed": 3,
        "stream": True, "sample_rate": 24000, "cfg_value": 2.0, "instructions": "slow", "prompt_text": "so",
        "prompt_audio": base64.b64encode(recordings()[0]).decode(),
    }  # fmt: skip

    def structured() -> Any:
        from robustness.strategies import changed_document

        return changed_document(document)

    return Reader((json.dumps(document).encode(),), _speech("application/json"), changed_json, structured)


_SAID: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    ("model", (b"voxcpm",)),
    ("input", (b"Yes.",)),
    ("voice", (b"ada",)),
    ("seed", (b"3", b"-1", b"x")),
    ("stream", (b"true", b"no")),
    ("prompt_text", (b"so",)),
)


def speech_form(bundle: Path, folder: Path) -> Reader:  # noqa: ARG001
    return _form(_SAID, "prompt_audio", _speech(_FORM))


def _form(fields: Any, file: str, read: Callable[[bytes], object]) -> Reader:
    """A form of these fields, whose first contents are valid, and a file."""
    sound = recordings()[0]
    parts = [(name, "", contents[0]) for name, contents in fields]
    parts.append((file, '; filename="me.wav"\r\nContent-Type: audio/wav', sound))
    content = b"".join(
        b'--%s\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
        % (_BOUNDARY, name.encode(), more.encode(), value)
        for name, more, value in parts
    )
    whole = content + b"--" + _BOUNDARY + b"--\r\n"

    def changed(content: bytes, chance: random.Random) -> bytes:
        # What is between the parts, rather than the samples.
        end = content.index(sound[:64]) if chance.random() < 0.8 else len(content)
        if chance.random() < 0.3:
            start = content[:end].decode("latin-1")
            return mutated_text(start, chance).encode("utf-8", "surrogatepass") + content[end:]
        return mutated_bytes(content[:end], chance) + content[end:]

    def structured() -> Any:
        from robustness.strategies import form

        return form((*fields, (file, (sound, sound[:50]))), _BOUNDARY)

    return Reader((whole,), read, changed, structured)


_KEPT: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    ("name", (b"ada", b"../ada", b"a" * 300)),
    ("consent", (b"true", b"false", b"x")),
    ("transcript", (b"so",)),
    ("model", (b"tts-1", b"nothing")),
)


def voice_upload(bundle: Path, folder: Path) -> Reader:
    """A form that makes a voice, given to the whole server; only the step models' work is left out."""
    from voxcpm_runtime import Voice, VoxCPM
    from voxcpm_server.application import create_app
    from voxcpm_server.middleware.authentication import Keys
    from voxcpm_server.rooms import AllSettings as Settings

    tts: Any = VoxCPM.from_bundle(bundle, precision="int8", threads=1)
    voice = tts.create_voice(recordings()[0], "so", name="ada")
    tts.create_voice = lambda *_, name, **__: Voice(
        voice.header.model_copy(update={"name": name}), voice.prompt
    )
    app = create_app(tts, Settings(voices_folder=folder, max_jobs=0), Keys(()))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(app.router.lifespan_context(app).__aenter__())

    def read(body: bytes) -> str | None:
        status = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])

        loop.run_until_complete(app(*_posted("/v1/audio/voices", body, _FORM), send))
        for path in folder.iterdir():
            path.unlink()
        assert status[0] < 500, status
        return None if status[0] == 201 else str(status[0])

    return _form(_KEPT, "audio_sample", read)


def wyoming(bundle: Path, folder: Path) -> Reader:  # noqa: ARG001
    """Events of Wyoming, one after another."""
    from voxcpm_server.errors import ApiError
    from voxcpm_server.wyoming.events import MAX_LINE_BYTES, EventStream

    data = json.dumps({"text": "Yes.", "voice": {"name": "ada"}}).encode()
    events = (
        b'{"type": "describe"}\n',
        b'{"type": "synthesize", "data": {"text": "No."}, "data_length": %d}\n%s' % (len(data), data),
        b'{"type": "audio-chunk", "payload_length": 5, "version": "1.7.0"}\nabcde',
    )

    async def received(content: bytes) -> None:
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        reader.feed_data(content)
        reader.feed_eof()
        stream = EventStream(reader, None, 1 << 20, 1.0)  # type: ignore[arg-type]
        while (event := await stream.receive()) is not None:
            assert isinstance(event.type, str)

    def read(content: bytes) -> str | None:
        try:
            asyncio.run(received(content))
        except ApiError as error:
            if error.status_code >= 500:
                raise
            return str(error.status_code)
        return None

    return Reader((b"".join(events), *events), read)
