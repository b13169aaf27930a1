"""Wyoming over TCP, Home Assistant's voice protocol: describe, synthesize, and streaming synthesize."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from importlib.metadata import version
from typing import Any

import anyio
from starlette.concurrency import run_in_threadpool
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, async_read_event, async_write_event
from wyoming.info import Attribution, Describe, Info, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped

from voxcpm_constants.user_folders import DEFAULT_VOICE
from voxcpm_runtime import GenerationOptions
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.voices.recordings import Recordings
from voxcpm_server.errors import CLIENT_CLOSED, ApiError
from voxcpm_server.middleware.authentication import is_loopback
from voxcpm_server.rooms import Address, Room
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.served_bundles import ServedBundle
from voxcpm_server.speech.service import Service
from voxcpm_server.speech.speaking import log_replaced
from voxcpm_server.streams.conversations import Conversation
from voxcpm_server.streams.sessions import SessionStream, SpokenPiece
from voxcpm_server.wyoming.options import WyomingSettings

MAX_LINE_BYTES = 65_536
_SAMPLE_BYTES = 2
_NAME = "voxcpm-coreml"
_ATTRIBUTION = Attribution("OpenBMB", "https://github.com/OpenBMB/VoxCPM")


class Wyoming(Room):
    """Entry point of this room. Enabled by `--wyoming`."""

    @classmethod
    def address(cls, settings: WyomingSettings, *, has_keys: bool) -> Address | None:
        """The server's host if it is loopback or an option allows open access, otherwise loopback."""
        if settings.wyoming is None:
            return None
        everyone = settings.insecure_serve_without_key and not has_keys
        is_open = everyone or settings.insecure_wyoming_without_key or is_loopback(settings.host)
        return settings.host if is_open else "127.0.0.1", settings.wyoming, "--wyoming"

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        """Accept connections on a listening socket."""
        serve = partial(_handle_connection, self.service)
        return await asyncio.start_server(serve, sock=listener, limit=MAX_LINE_BYTES)


async def _handle_connection(
    service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    status = 500
    connection = _WyomingConnection(service, reader, writer)
    try:
        with service.conversations.admit(connection.owner):
            status = await connection.serve()
    except ApiError as error:
        status = error.status_code
        with contextlib.suppress(OSError), anyio.move_on_after(1):
            await connection.end(error)
    finally:
        if status != CLIENT_CLOSED:
            # Flushes pending data if the client reads.
            writer.close()
        patience = 0 if status == CLIENT_CLOSED else service.settings.client_timeout
        asyncio.get_running_loop().call_later(patience, writer.transport.abort)
        service.metrics.requests.labels("wyoming", str(status)).inc()


class _WyomingConnection(Conversation):
    """A connection. Wyoming has no keys, so the client's address is the owner."""

    def __init__(self, service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        super().__init__(service, f"wyoming {peer[0]}" if peer else "wyoming")
        self._reader = reader
        self._writer = writer
        # The current speech, and whether it accepts more text.
        self._stream: SessionStream | None = None
        self._takes_text = False

    async def receive(self) -> Event | None:
        """The next event; None at the end. Raises ApiError if it is malformed or too large."""
        try:
            return await read_event(self._reader, self.service.settings.max_message_bytes)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def handle(self, message: Event) -> bool:
        kind = message.type
        if Describe.is_type(kind):
            await self._send(await self._info())
        elif Ping.is_type(kind):
            await self._send(Pong(Ping.from_event(message).text).event())
        elif SynthesizeStart.is_type(kind):
            await self._begin(message)
        elif SynthesizeChunk.is_type(kind):
            self._open(kind).push(_text(message))
        elif SynthesizeStop.is_type(kind):
            self._open(kind).finish()
            self._takes_text = False
        elif Synthesize.is_type(kind) and not self._takes_text:
            text = _text(message)
            await self._begin(message)
            stream = self._open(kind)
            stream.push(text)
            stream.finish()
            self._takes_text = False
        # Between start and stop, `synthesize` repeats the whole text for servers without streaming. Other events, such
        # as microphone audio, are ignored.
        return True

    def _open(self, kind: str) -> SessionStream:
        if self._stream is None or not self._takes_text:
            raise ApiError(400, f"{kind}: expected synthesize-start first")
        return self._stream

    async def _begin(self, message: Event) -> None:
        if self._stream is not None:
            raise ApiError(400, f"{message.type}: a speech is in progress; wait for audio-stop")
        if message.data.get("text_format") not in (None, "text"):
            raise ApiError(400, "text_format: expected text")
        voice = message.data.get("voice")
        name = voice.get("name") if isinstance(voice, dict) else None
        if not isinstance(name, str | None):
            raise ApiError(400, "voice.name: expected a string", param="voice")

        def prepare(served: ServedBundle) -> tuple[Request, Encoder]:
            voice = self.service.voices.named(name or DEFAULT_VOICE, served.tts.built_in_voices)
            rate = served.tts.sample_rate
            request = Request(recordings=Recordings(voice=voice), options=GenerationOptions(clean="markdown"))
            return request, Encoder("pcm", rate, rate)

        self._stream = await self.open_stream(None, prepare)
        self._takes_text = True
        in_fragments = SynthesizeStart.is_type(message.type)
        self.speak(self._stream, partial(self._speech, self._stream, in_fragments=in_fragments))

    async def _speech(self, stream: SessionStream, *, in_fragments: bool) -> None:
        rate = stream.encoder.sample_rate
        sent = 0
        await self._send(AudioStart(rate, _SAMPLE_BYTES, 1, timestamp=0).event())
        async for piece in stream:
            if isinstance(piece, SpokenPiece) and piece.data:
                at = 1000 * sent // rate
                await self._send(AudioChunk(rate, _SAMPLE_BYTES, 1, piece.data, timestamp=at).event())
                sent += len(piece.data) // _SAMPLE_BYTES
        log_replaced(stream.replaced)  # no event has a place for them
        self._stream = None
        await self._send(AudioStop(timestamp=1000 * sent // rate).event())
        if in_fragments:
            await self._send(SynthesizeStopped().event())

    async def end(self, error: ApiError | None) -> None:
        if error is not None:
            await self._write(Error(error.detail, error.code).event())

    async def _send(self, event: Event) -> None:
        await self.send_with_timeout(self._write(event))

    async def _write(self, event: Event) -> None:
        if self._writer.is_closing():
            raise ConnectionResetError
        await async_write_event(event, self._writer)

    async def _info(self) -> Event:
        about: dict[str, Any] = {"attribution": _ATTRIBUTION, "installed": True, "version": version(_NAME)}
        with await self.service.bundles.lease() as served:
            names = await run_in_threadpool(self.service.voices.names, served.tts.built_in_voices)
            manifest = served.tts.bundle.manifest
        own = manifest.speech.language if manifest.speech is not None else None
        languages = [own] if own else list(manifest.architecture.traits.languages)
        program = TtsProgram(
            name=_NAME,
            description=f"VoxCPM ({self.service.bundles.names[0]})",
            voices=[TtsVoice(name=n, description=n, languages=languages, **about) for n in names],
            supports_synthesize_streaming=True,
            **about,
        )
        return Info(tts=[program]).event()


class _BoundedReader:
    """A reader with a size limit, which the wyoming package lacks."""

    def __init__(self, reader: asyncio.StreamReader, max_bytes: int) -> None:
        self._reader = reader
        self._max_bytes = max_bytes

    async def readline(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            raise ApiError(413, f"expected a line of at most {MAX_LINE_BYTES} bytes") from None

    async def readexactly(self, size: int) -> bytes:
        if size > self._max_bytes:
            raise ApiError(413, f"expected an event of at most {self._max_bytes} bytes, got {size}")
        return await self._reader.readexactly(size)


async def read_event(reader: asyncio.StreamReader, max_bytes: int) -> Event:
    """Read an event. Raises ApiError if it is malformed or too large, and IncompleteReadError at the end."""
    event = None
    with contextlib.suppress(TypeError, AttributeError, KeyError, RecursionError):
        event = await async_read_event(_BoundedReader(reader, max_bytes))  # type: ignore[arg-type]
    if event is None or not isinstance(event.type, str) or not isinstance(event.data or {}, dict):
        expected = "a JSON object with a type and an object as data"
        raise ApiError(400, f"expected a Wyoming event: {expected}")
    return Event(event.type, event.data or {})


def _text(message: Event) -> str:
    text = message.data.get("text")
    if not isinstance(text, str):
        raise ApiError(400, "text: expected a string", param="text")
    return text
