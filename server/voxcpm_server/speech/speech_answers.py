"""Answers with speech: streamed audio, server-sent events, or the whole audio at once."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from voxcpm_server.errors import as_api_error
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.served_bundles import Served
from voxcpm_server.speech.service import service_of
from voxcpm_server.speech.speaking import SpeechStream
from voxcpm_server.speech.streaming import StreamedResponse, ended, unless_gone

_EVENTS = "text/event-stream"
# Voice agents' clients time out after 5 seconds without data.
_SILENT_SECONDS = 3.0


async def speak(
    request: Request,
    served: Served,
    given: dict[str, Any],
    encoder: Encoder,
    *,
    events: bool = False,
    whole: bool = False,
) -> Response:
    """The speech as audio, streamed or whole, or as server-sent events.

    served: the bundle, which stays open until all is spoken. given: arguments of `VoxCPM.speak`.
    Raises ApiError and what `VoxCPM.speak` raises, as long as nothing has been sent.
    """
    service = service_of(request)
    planned = await unless_gone(request, served.speeches.planned(given))
    beginning = asyncio.ensure_future(
        served.speeches.begin(
            request.state.owner, planned, whole=whole, speed=encoder.speed, began=request.state.began
        )
    )
    _hold(served, beginning)
    headers = {
        "X-Seed": str(planned.seed),
        "X-Sample-Rate": str(encoder.sample_rate),
        "Cache-Control": "no-store",
    }
    patience = service.settings.client_timeout
    end = partial(_end, beginning)
    try:
        await unless_gone(request, asyncio.wait({beginning}, timeout=_SILENT_SECONDS if events else None))
        if events and not beginning.done():
            # A request that cannot be spoken has failed by now, with a status.
            return StreamedResponse(_events(beginning, encoder), _EVENTS, headers, patience, end)
        stream = beginning.result()
    except BaseException:
        await end()
        raise
    if events:
        return StreamedResponse(_events(beginning, encoder), _EVENTS, headers, patience, end)
    if not whole:
        parts = _audio(stream, encoder)
        return StreamedResponse(parts, encoder.format.content_type, headers, patience, end)
    body = b"".join([part async for part in _encoded(stream, encoder)])
    headers["X-Audio-Duration"] = f"{encoder.samples / encoder.sample_rate:.3f}"
    return Response(encoder.header(encoder.samples) + body, 200, headers, encoder.format.content_type)


def _hold(served: Served, beginning: asyncio.Task[SpeechStream]) -> None:
    """Keep the bundle open until the speech has ended."""
    release = served.hold()

    def begun(task: asyncio.Task[SpeechStream]) -> None:
        if task.cancelled() or task.exception() is not None:
            release()
        else:
            task.result().when_done(release)

    beginning.add_done_callback(begun)


async def _end(beginning: asyncio.Task[SpeechStream]) -> None:
    """Cancel a speech, whether it has begun or not."""
    await ended(beginning)
    if not beginning.cancelled() and beginning.exception() is None:
        await beginning.result().aclose()


async def _encoded(stream: SpeechStream, encoder: Encoder) -> AsyncGenerator[bytes, None]:
    """The encoded speech without a header. Closes the stream. Encoding a long piece takes seconds, hence threads."""
    try:
        async for piece in stream:
            if data := await run_in_threadpool(encoder.encode, piece):
                yield data
        if data := await run_in_threadpool(encoder.finish):
            yield data
    finally:
        await stream.aclose()


async def _audio(stream: SpeechStream, encoder: Encoder) -> AsyncGenerator[bytes, None]:
    # Close the inner generator with this one, not when it is garbage collected.
    async with aclosing(_encoded(stream, encoder)) as parts:
        # At once: with a speed other than 1, the first audio comes later than the first patch.
        if header := encoder.header():
            yield header
        async for data in parts:
            yield data


async def _events(beginning: asyncio.Task[SpeechStream], encoder: Encoder) -> AsyncGenerator[bytes, None]:
    """Server-sent events like OpenAI's: deltas of audio in base64, then `done` with usage and length.

    Comments keep the connection alive until the speech has begun. An error is sent as an event, then raised.
    """
    try:
        while not beginning.done():
            yield b": waiting\n\n"
            await asyncio.wait({beginning}, timeout=_SILENT_SECONDS)
        stream = beginning.result()
        async with aclosing(_audio(stream, encoder)) as parts:
            async for data in parts:
                yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
    except Exception as error:  # noqa: BLE001 - the status has been sent, so the error is an event
        answer = as_api_error(error)
        yield _event({"type": "error", **answer.document})
        # A client that ignores error events must not take a part for the whole.
        raise answer from None
    tokens = stream.text_tokens
    usage = {"input_tokens": tokens, "output_tokens": stream.patches, "total_tokens": tokens + stream.patches}
    seconds = round(encoder.samples / encoder.sample_rate, 3)
    yield _event({"type": "speech.audio.done", "usage": usage, "seconds": seconds})
    yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()
