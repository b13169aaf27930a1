"""Readers of what a server's clients send: speech as JSON, events of Wyoming."""

import asyncio
import base64
import contextlib
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from robustness.mutations import mutated_json
from robustness.reader import Reader
from robustness.readers.texts import recordings

_JSON = {
    "model": "voxcpm", "input": "Yes.", "voice": {"id": "ada"}, "response_format": "wav", "speed": 1.0, "seed": 3,
    "stream": True, "markup": False, "sample_rate": 24000, "cfg_value": 2.0, "instructions": "slow",
    "prompt_text": "so",
}  # fmt: skip


def _refusal(read: Callable[[bytes], Coroutine[Any, Any, None]]) -> Callable[[bytes], str | None]:
    """Reads, and returns the status with which a server refuses the input."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    from voxcpm_constants.errors import InputError
    from voxcpm_server.errors import ApiError

    def refused(content: bytes) -> str | None:
        try:
            asyncio.run(read(content))
        except (RequestValidationError, InputError):
            return "422"
        except (ApiError, HTTPException) as error:
            if error.status_code >= 500:
                raise
            return str(error.status_code)
        return None

    return refused


def _speech(kind: str) -> Callable[[bytes], str | None]:
    """A reader of speech requests and the arguments made from them."""
    from starlette.requests import Request

    from voxcpm_server.rooms import AllSettings as Settings
    from voxcpm_server.speech.speech_requests import speech_request

    settings = Settings()
    app = SimpleNamespace(state=SimpleNamespace(service=SimpleNamespace(settings=settings)))
    served: Any = SimpleNamespace(takes_instructions=True, tts=SimpleNamespace(built_in_voices={}))
    voices: Any = SimpleNamespace(finder=lambda _: None)

    async def read(body: bytes) -> None:
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": "/v1/audio/speech",
            "raw_path": b"/v1/audio/speech", "query_string": b"", "root_path": "", "app": app, "state": {},
            "headers": [(b"host", b"127.0.0.1"), *headers], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return messages.pop() if messages else await asyncio.get_running_loop().create_future()

        request = await speech_request(Request(scope, receive))
        request.ignored_fields(served)
        request.runtime_request(settings, served, 4096, None, voices)

    return _refusal(read)


def speech_json(bundle: Path, folder: Path) -> Reader:  # noqa: ARG001
    document = {**_JSON, "prompt_audio": base64.b64encode(recordings()[0]).decode()}
    return Reader((json.dumps(document).encode(),), _speech("application/json"), mutated_json)


def wyoming(bundle: Path, folder: Path) -> Reader:  # noqa: ARG001
    """Events of Wyoming, one after another."""
    from voxcpm_server.wyoming.server import MAX_LINE_BYTES, read_event

    data = json.dumps({"text": "Yes.", "voice": {"name": "ada"}}).encode()
    events = (
        b'{"type": "describe"}\n',
        b'{"type": "synthesize", "data": {"text": "No."}, "data_length": %d}\n%s' % (len(data), data),
        b'{"type": "audio-chunk", "payload_length": 5, "version": "1.7.0"}\nabcde',
    )

    async def read(content: bytes) -> None:
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        reader.feed_data(content)
        reader.feed_eof()
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                event = await read_event(reader, 1 << 20)
                assert isinstance(event.type, str)

    return Reader((b"".join(events), *events), _refusal(read))
