"""Wyoming over TCP, the protocol of Home Assistant's voices: describe, synthesize, and synthesize in fragments."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from importlib.metadata import version
from typing import Any

from starlette.concurrency import run_in_threadpool
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Attribution, Describe, Info, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.user_folders import DEFAULT_VOICE
from voxcpm_server.errors import CLIENT_GONE, ApiError
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.served_bundles import Served
from voxcpm_server.speech.service import Service
from voxcpm_server.streams.conversations import Conversation
from voxcpm_server.streams.sessions import SessionStream, Spoken
from voxcpm_server.wyoming.events import MAX_LINE_BYTES, EventStream

_OWNER = "wyoming "
_ROUTE = "wyoming"
_WIDTH = 2
_NAME = "voxcpm-coreml"
_ATTRIBUTION = Attribution("OpenBMB", "https://github.com/OpenBMB/VoxCPM")


def languages_of(manifest: Manifest) -> list[str]:
    """The languages of a bundle: the one of its checkpoint, or those of its generation."""
    own = manifest.speech.language if manifest.speech is not None else None
    return [own] if own else list(manifest.architecture.traits.languages)


class WyomingServer:
    """Speaks Wyoming with whoever connects, with the queue, limits and metrics of a service."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def start(self, listener: socket.socket) -> asyncio.Server:
        """Take connections from this socket, which listens already, until what this returns is closed."""
        return await asyncio.start_server(self._connected, sock=listener, limit=MAX_LINE_BYTES)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        settings = self.service.settings
        events = EventStream(reader, writer, settings.max_message_bytes, settings.client_timeout)
        status = 500
        try:
            status = await _Talk(self.service, _owner(writer), events).serve()
        except ApiError as error:
            status = error.status_code
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(events.send(_error(error)), 1)
        finally:
            if status == CLIENT_GONE:
                events.abort()
            else:
                events.close()
            self.service.metrics.requests.labels(_ROUTE, str(status)).inc()


class _Talk(Conversation):
    """One connection."""

    def __init__(self, service: Service, owner: str, events: EventStream) -> None:
        super().__init__(service, owner)
        self._events = events
        # The current speech, and whether it takes text.
        self._stream: SessionStream | None = None
        self._takes_text = False

    @property
    def speaking(self) -> bool:
        return self._stream is not None and self._stream.speaking

    async def receive(self) -> Event | None:
        return await self._events.receive()

    async def handle(self, message: Event) -> bool:
        kind = message.type
        if Describe.is_type(kind):
            await self._send(await self._info())
        elif Ping.is_type(kind):
            await self._send(Pong(Ping.from_event(message).text).event())
        elif SynthesizeStart.is_type(kind):
            self._require_silence(kind)
            await self._begin(message)
        elif SynthesizeChunk.is_type(kind):
            self._open(kind).push(_text(message))
        elif SynthesizeStop.is_type(kind):
            self._open(kind).finish()
            self._takes_text = False
        elif Synthesize.is_type(kind) and not self._takes_text:
            self._require_silence(kind)
            text = _text(message)
            await self._begin(message)
            stream = self._open(kind)
            stream.push(text)
            stream.finish()
            self._takes_text = False
        # Between start and stop, synthesize repeats the whole text, for servers without fragments. Other events, such
        # as those of a microphone, are ignored.
        return True

    def _require_silence(self, kind: str) -> None:
        if self._stream is not None:
            raise ApiError(400, f"{kind}: one speech at a time; wait until audio-stop")

    def _open(self, kind: str) -> SessionStream:
        if self._stream is None or not self._takes_text:
            raise ApiError(400, f"{kind}: expected synthesize-start before")
        return self._stream

    async def _begin(self, message: Event) -> None:
        if message.data.get("text_format") not in (None, "text"):
            raise ApiError(400, "text_format: expected text")

        def wanted(served: Served) -> tuple[dict[str, Any], Encoder]:
            voice = self.service.voices.named(_voice_name(message), served.built_in_voices)
            rate = served.tts.sample_rate
            return {} if voice is None else {"voice": voice}, Encoder("pcm", rate, rate)

        self._stream = await self.begun(None, wanted)
        self._takes_text = True
        in_fragments = SynthesizeStart.is_type(message.type)
        self.speak(self._stream, self._speech(self._stream, in_fragments=in_fragments))

    async def _speech(self, stream: SessionStream, *, in_fragments: bool) -> None:
        rate = stream.encoder.sample_rate
        sent = 0
        await self._send(AudioStart(rate, _WIDTH, 1, timestamp=0).event())
        async for piece in stream:
            if isinstance(piece, Spoken) and piece.data:
                at = 1000 * sent // rate
                await self._send(AudioChunk(rate, _WIDTH, 1, piece.data, timestamp=at).event())
                sent += len(piece.data) // _WIDTH
        self._stream = None
        await self._send(AudioStop(timestamp=1000 * sent // rate).event())
        if in_fragments:
            await self._send(SynthesizeStopped().event())

    async def end(self, error: ApiError | None) -> None:
        if error is not None:
            await self._events.send(_error(error))

    async def _send(self, event: Event) -> None:
        await self.in_time(self._events.send(event))

    async def _info(self) -> Event:
        about: dict[str, Any] = {"attribution": _ATTRIBUTION, "installed": True, "version": version(_NAME)}
        with await self.service.bundles.lease() as served:
            names = await run_in_threadpool(self.service.voices.names, served.built_in_voices)
            languages = languages_of(served.tts.bundle.manifest)
        voices = [TtsVoice(name=n, description=n, languages=languages, **about) for n in names]
        program = TtsProgram(
            name=_NAME,
            description=f"VoxCPM ({self.service.bundles.names[0]})",
            voices=voices,
            supports_synthesize_streaming=True,
            **about,
        )
        return Info(tts=[program]).event()


def _owner(writer: asyncio.StreamWriter) -> str:
    """The owner of a connection. Clients have no keys, so each address counts as one."""
    peer = writer.get_extra_info("peername")
    return f"{_OWNER}{peer[0]}" if peer else _OWNER


def _error(error: ApiError) -> Event:
    return Error(error.detail, error.code).event()


def _text(message: Event) -> str:
    text = message.data.get("text")
    if not isinstance(text, str):
        raise ApiError(400, "text: expected a string", param="text")
    return text


def _voice_name(message: Event) -> str:
    voice = message.data.get("voice")
    name = voice.get("name") if isinstance(voice, dict) else None
    if name is None:
        return DEFAULT_VOICE
    if not isinstance(name, str):
        raise ApiError(400, "voice.name: expected a string", param="voice")
    return name
