"""Speech responses: streamed audio, server-sent events, or whole audio.

Generation is cancelled when the client disconnects or stalls.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import fastapi
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from voxcpm_runtime import Word
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.words.words import missed_words
from voxcpm_server.errors import CLIENT_CLOSED, as_api_error, client_closed
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.served_bundles import ServedBundle
from voxcpm_server.speech.service import get_service
from voxcpm_server.speech.speaking import SpeechStream, cancel_and_wait, send_with_timeout

Result = TypeVar("Result")
Captions = Callable[[bytes, Sequence[Word]], dict[str, Any]]
"""Makes a JSON object of encoded audio and the words found with it."""
JSON_LINES = "application/x-ndjson"
_MAX_TIMESTAMPS = 4096  # bytes of the header
_MAX_MISSED, _MAX_WORD = 20, 30  # words and characters of each in a header, also less than 4096 bytes
# Voice agents' clients time out after 5 seconds without data.
_SILENT_SECONDS = 3.0


async def speak(
    request: fastapi.Request, served: ServedBundle, wanted: Request, encoder: Encoder, *, events: bool = False,
    whole: bool = False, timed: bool = False, captions: Captions | None = None
) -> Response:  # fmt: skip
    """Respond with audio, streamed or whole, or with server-sent events. wanted: what to speak.

    timed: include word times. captions: respond with JSON instead, one line per piece if streamed.

    Raises ApiError and what `VoxCPM.speak` raises, as long as nothing has been sent.
    """
    state, service = request.state, get_service(request)
    stream = SpeechStream(service, served, state.owner, whole=whole, requested_at=state.began)
    try:
        await cancel_on_disconnect(
            request.receive, stream.prepare(wanted, timed=timed or captions is not None)
        )
        first_piece = stream.begin()
        # A request that cannot be spoken fails within this time, and gets a status.
        wait = asyncio.wait({first_piece}, timeout=_SILENT_SECONDS if events else None)
        await cancel_on_disconnect(request.receive, wait)
        if first_piece.done():
            first_piece.result()
        headers = {"X-Seed": str(stream.plan.seed or 0), "X-Sample-Rate": str(encoder.sample_rate)}
        headers["Cache-Control"] = "no-store"
        if (voice := stream.plan.voice) is not None and voice.faults:
            headers["X-Recording-Warnings"] = json.dumps(voice.faults)
        if events:
            parts, content_type = _events(first_piece, stream, encoder), "text/event-stream"
        elif captions is not None and not whole:
            parts, content_type = _lines(stream, encoder, captions), JSON_LINES
        else:
            parts, content_type = _audio(stream, encoder, with_header=not whole), encoder.format.content_type
        # Of a long text, only those at its beginning are known before the audio.
        headers |= _replaced(stream)
        if events or not whole:
            return StreamedResponse(parts, stream, content_type, headers)
        body = b"".join([part async for part in parts])
    except BaseException:
        await stream.aclose()
        raise
    headers |= {**_replaced(stream), "X-Audio-Duration": f"{encoder.seconds:.3f}"}
    for kind, missed in missed_words(stream.missed).items():
        fitting = [{**word, "word": word["word"][:_MAX_WORD]} for word in missed[:_MAX_MISSED]]
        headers[f"X-{kind.title()}-Words"] = json.dumps(fitting)
    body = encoder.header(encoder.samples) + encoder.completed(body)
    words = encoder.heard(stream.take_words())
    if captions is not None:
        return JSONResponse(captions(body, words), 200, headers)
    if timed:
        times = json.dumps(timestamps(words))
        fits = len(times) <= _MAX_TIMESTAMPS
        headers["X-Word-Timestamps" if fits else "X-Word-Timestamps-Omitted"] = times if fits else "true"
    return Response(body, 200, headers, content_type)


def _replaced(stream: SpeechStream) -> dict[str, str]:
    return {"X-Replaced-Characters": json.dumps(stream.replaced[:_MAX_MISSED])} if stream.replaced else {}


def timestamps(words: Sequence[Word]) -> list[dict[str, Any]]:
    """The words that are said, in vllm-omni's format."""
    return [
        {"word": word.text, "start_ms": round(1000 * word.start), "end_ms": round(1000 * word.end)}
        for word in words
        if word.said
    ]


async def _lines(stream: SpeechStream, encoder: Encoder, captions: Captions) -> AsyncGenerator[bytes, None]:
    async for data in _audio(stream, encoder, with_header=True):
        yield json.dumps(captions(data, encoder.heard(stream.take_words()))).encode() + b"\n"


async def _audio(stream: SpeechStream, encoder: Encoder, *, with_header: bool) -> AsyncGenerator[bytes, None]:
    """The encoded speech. Encoding runs in the thread pool: a long piece takes seconds."""
    # Immediately: with a speed other than 1, audio comes later than the first patch.
    if with_header and (header := encoder.header()):
        yield header
    async for piece in stream:
        if data := await run_in_threadpool(encoder.encode, piece):
            yield data
    if data := await run_in_threadpool(encoder.finish):
        yield data


async def _events(
    first_piece: asyncio.Task[None], stream: SpeechStream, encoder: Encoder
) -> AsyncGenerator[bytes, None]:
    """Server-sent events like OpenAI's: deltas of base64 audio, then `done` with usage and duration.

    Comments keep the connection alive until speech begins. An error is sent as an event, then raised.
    """
    try:
        while not first_piece.done():
            yield b": waiting\n\n"
            await asyncio.wait({first_piece}, timeout=_SILENT_SECONDS)
        first_piece.result()
        async for data in _audio(stream, encoder, with_header=True):
            yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
            if words := encoder.heard(stream.take_words()):
                times = {"words": timestamps(words), "method": words[0].method}
                yield _event({"type": "speech.audio.timestamps", **times})
    except Exception as error:  # noqa: BLE001 - the status has been sent, so the error is an event
        answer = as_api_error(error)
        yield _event({"type": "error", **answer.document})
        # A client that ignores error events must not mistake a truncated stream for a complete one.
        raise answer from None
    tokens, patches = stream.text_tokens, stream.patches
    usage = {"input_tokens": tokens, "output_tokens": patches, "total_tokens": tokens + patches}
    done = {"type": "speech.audio.done", "usage": usage, "seconds": encoder.seconds}
    yield _event({**done, **missed_words(stream.missed, stream.replaced)})
    yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


async def cancel_on_disconnect(receive: Receive, work: Awaitable[Result]) -> Result:
    """Await work. Cancels it and raises ApiError (499) on disconnect. The request body must have been read."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise client_closed()
        return task.result()
    finally:
        await cancel_and_wait(disconnect)
        await cancel_and_wait(task)


def with_send_timeout(send: Send, patience: float) -> Send:
    """A `send` with a timeout: see `send_with_timeout`."""
    return lambda message: send_with_timeout(send(message), patience)


class StreamedResponse(StreamingResponse):
    """A response whose parts are sent as they are generated.

    It ends if the client disconnects or reads nothing for a time. After an error the connection is closed
    before the end of the body, so that the client notices the truncation. Both the generator and the stream are always
    closed, as closing a generator that never started is a no-op.
    """

    def __init__(
        self, parts: AsyncGenerator[bytes, None], stream: SpeechStream, media_type: str, headers: Mapping[str, str]
    ) -> None:  # fmt: skip
        super().__init__(parts, 200, headers, media_type)
        self._parts, self._stream = parts, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts."""
        try:
            timed_send = with_send_timeout(send, self._stream.service.settings.client_timeout)
            await cancel_on_disconnect(receive, self.stream_response(timed_send))
        except Exception as error:  # noqa: BLE001 - the status has been sent
            status = CLIENT_CLOSED if isinstance(error, OSError) else as_api_error(error).status_code
            scope.setdefault("state", {})["final_status"] = status
        finally:
            await self._parts.aclose()
            await self._stream.aclose()
