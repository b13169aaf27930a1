"""The runtime's sessions, which speak text in fragments, as streams of the event loop.

text ─► session, on its own thread ─► encoder, on a second thread ─► pieces, on the event loop
        speaks in its turn
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from starlette.concurrency import run_in_threadpool

from voxcpm_runtime import AudioChunk, Cancelled, Session
from voxcpm_server.errors import ApiError, speech_too_long
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.queueing import Turn
from voxcpm_server.speech.served_bundles import Served
from voxcpm_server.speech.speaking import Pipe, Playback

if TYPE_CHECKING:
    from voxcpm_server.speech.service import Service

_SEED_BITS = 32
# Encoded pieces that wait for the event loop; the others wait in the session's own buffer.
_ROOM = 4
_FULL_SCALE = 32767


class Spoken(NamedTuple):
    """A piece of speech: one patch, or a pause."""

    data: bytes
    """Encoded bytes; may be empty, as codecs collect samples first."""
    sentence: int
    """Index of the sentence, from 0."""
    text: str
    """The sentence as it was sent, with the white space around it."""
    seconds: float
    """Playing time of the piece."""


class CaughtUp(NamedTuple):
    """Everything up to a flush has been spoken."""


class SessionStream(Pipe[Spoken | CaughtUp]):
    """The speech of text that comes in fragments; `aclose` ends it.

    A turn is held only while there is a complete sentence to speak. A reader that is slower than the speech pauses it.
    owner: whose turns it takes.
    """

    def __init__(self, service: Service, served: Served, owner: str, seed: int, encoder: Encoder) -> None:
        super().__init__(service, served, _ROOM)
        self.seed = seed
        """The seed that reproduces this speech from the same text, however it is cut into fragments."""
        self.encoder = encoder
        self.speaking = False
        """Whether it speaks, or waits for its turn to."""
        self.characters = 0
        """Characters pushed so far."""
        self._owner = owner
        self._settings = service.settings
        self._queue = service.queue
        self._metrics = service.metrics
        self._session: Session | None = None
        self._closed = False
        self._flushes = 0
        self._last_flush: int | None = None
        self._more = threading.Event()
        self._turn: Turn | None = None
        self._entering: concurrent.futures.Future[None] | None = None
        # For metrics, used on the threads: when the first and the latest turn were asked for, seconds in turns, whether
        # the reader kept up, and what a listener would hear.
        self._asked: float | None = None
        self._asked_last = 0.0
        self._worked = 0.0
        self._kept_up = True
        self._playback = Playback()
        self.when_ended(self._leave)

    @classmethod
    async def begun(
        cls, service: Service, served: Served, owner: str, given: Mapping[str, Any], encoder: Encoder
    ) -> SessionStream:
        """A stream that speaks what is pushed to it. given: arguments of `VoxCPM.session`, whose errors it raises."""
        seed = given.get("seed")
        seed = secrets.randbits(_SEED_BITS) if seed is None else seed
        stream = cls(service, served, owner, seed, encoder)
        buffer_seconds = service.settings.buffer_seconds
        arguments = {**given, "seed": seed, "buffer_seconds": buffer_seconds, "turn": stream.turn}
        try:
            await run_in_threadpool(lambda: stream._open(served.tts.session(**arguments)))
        except BaseException:
            await stream.aclose()
            raise
        return stream

    def push(self, text: str) -> None:
        """Speak this after what was pushed before. Raises ApiError (400) if the speech has too many characters."""
        maximum = self._settings.max_characters
        self.characters += len(text)
        if self.characters > maximum:
            raise ApiError(
                400,
                f"text: expected at most {maximum} characters in one speech, got {self.characters}",
                param="text",
                code="string_above_max_length",
            )
        if self._session is not None and not self._closed:
            self._session.push_text(text)
            self._more.set()

    def flush(self) -> None:
        """Speak all that was pushed, even an unfinished sentence; a `CaughtUp` follows its pieces."""
        if self._session is not None and not self._closed:
            self._session.flush()
            self._flushes += 1
            self._more.set()

    def finish(self) -> None:
        """Flush for the last time; then the stream ends."""
        self._last_flush = self._flushes + 1
        self.flush()

    async def aclose(self) -> None:
        """Cancel what is still to be made, and wait until it has ended."""
        if not self._closed:
            self._closed = True
            if self._session is None:
                self.end_now()
            else:
                self._session.cancel()
            self._more.set()
            if self._entering is not None:
                self._entering.cancel()
        await self.ended()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """The turn in which the session speaks, on its thread. Raises ApiError if the queue is full, and Cancelled."""
        self.speaking = True
        try:
            self._asked_last = time.perf_counter()
            if self._asked is None:
                self._asked = self._asked_last
            self._entering = asyncio.run_coroutine_threadsafe(self._enter(), self._loop)
            if self._closed:
                self._entering.cancel()
            try:
                self._entering.result()
            except concurrent.futures.CancelledError:
                raise Cancelled("the speech was cancelled while it waited") from None
            began = time.perf_counter()
            yield
            self._worked += time.perf_counter() - began
        finally:
            self.on_the_loop(self._leave)
            self.speaking = False

    async def _enter(self) -> None:
        self._turn = await self._queue.enter(self._owner)

    def _leave(self) -> None:
        if self._turn is not None:
            self._turn.leave()
            self._turn = None

    def _open(self, session: Session) -> None:
        """Read this session from now on, on a thread."""
        if self._closed:
            # It was closed before there was a session to cancel.
            session.close()
            return
        threading.Thread(target=self._read, args=(session,), name="speech", daemon=True).start()
        self._session = session

    def _read(self, session: Session) -> None:
        """The thread's work."""
        outcome, seconds = "finished", 0.0
        last: Exception | None = None
        try:
            seconds = self._pieces(session)
        except Exception as error:  # noqa: BLE001 - raised where the pieces are read
            outcome, last = "cancelled" if isinstance(error, Cancelled) else "failed", error
        session.close()
        if self._asked is not None:
            seconds = seconds if self._kept_up else 0
            underrun = self._playback.ran_out
            self._metrics.count_speech(outcome, underrun=underrun, work=self._worked, seconds=seconds)
        self.end(last)

    def _pieces(self, session: Session) -> float:
        """Put all pieces, and return the seconds of speech."""
        seconds, caught_up = 0.0, 0
        while True:
            flushes = self._flushes
            chunk = session.next_audio_chunk()
            self._check()
            if chunk is not None:
                if not seconds and self._asked is not None:
                    self._metrics.first_audio.observe(time.perf_counter() - self._asked)
                seconds += len(chunk.pcm) / session.sample_rate
                self._metrics.audio_seconds.inc(len(chunk.pcm) / session.sample_rate)
                if seconds > self._settings.max_audio_seconds:
                    raise speech_too_long(self._settings.max_audio_seconds)
                self._kept_up = self._kept_up and session.buffered_seconds < self._settings.buffer_seconds / 2
                piece = self._spoken(chunk, session.sample_rate)
                self._playback.takes(piece.seconds, self._asked_last)
                self._playback.pauses(self.put(piece, self._check))
            elif self._last_flush is not None and flushes >= self._last_flush:
                self.put(Spoken(self.encoder.finish(), -1, "", 0.0), self._check)
                return seconds
            elif flushes > caught_up:
                caught_up = flushes
                self.put(CaughtUp(), self._check)
            else:
                self._more.wait()
                self._more.clear()

    def _spoken(self, chunk: AudioChunk, rate: int) -> Spoken:
        audio = chunk.pcm.astype(np.float32) / np.float32(_FULL_SCALE)
        seconds = len(audio) / rate / self.encoder.speed
        return Spoken(self.encoder.encode(audio), chunk.sentence, chunk.text, seconds)

    def _check(self) -> None:
        if self._closed:
            raise Cancelled("the speech was cancelled")
