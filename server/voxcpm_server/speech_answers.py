"""The answers that speak: audio while it is made, the same as server-sent events, or all of it at once."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from voxcpm_server.encoding import Encoder
from voxcpm_server.errors import as_api_error
from voxcpm_server.served_bundles import Served
from voxcpm_server.service import service_of
from voxcpm_server.speaking import SpeechStream
from voxcpm_server.streaming import StreamedResponse, unless_gone


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
    speech = served.speeches.begin(request.state.owner, given, whole=whole, began=request.state.began)
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
    """Server-sent events as OpenAI's: deltas of audio in base64, then `done` with what was used and the length.

    An error is told as an event, and then raised.
    """
    try:
        async with aclosing(_audio(stream, encoder)) as parts:
            async for data in parts:
                yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
    except Exception as error:  # noqa: BLE001 - the status is sent already, so it is told as an event
        answer = as_api_error(error)
        yield _event({"type": "error", **answer.document})
        # Clients that ignore events they do not know must not take a part for the whole.
        raise answer from None
    tokens = stream.text_tokens
    usage = {"input_tokens": tokens, "output_tokens": stream.patches, "total_tokens": tokens + stream.patches}
    seconds = round(encoder.samples / encoder.sample_rate, 3)
    yield _event({"type": "speech.audio.done", "usage": usage, "seconds": seconds})
    yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()
