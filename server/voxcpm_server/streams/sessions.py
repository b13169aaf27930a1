"""The runtime's sessions, which speak streamed text, as asynchronous streams.

text ─► session, on its own thread ─► encoder, on a second thread ─► pieces, on the event loop
        speaks when it has a turn
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from starlette.concurrency import run_in_threadpool

from voxcpm_runtime import AudioChunk, Cancelled, Session, Word
from voxcpm_runtime.audio.pcm import PEAK
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.speech.seeds import first_seed
from voxcpm_server.errors import ApiError, speech_too_long
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.served_bundles import ServedBundle
from voxcpm_server.speech.speaking import Stream

if TYPE_CHECKING:
    from voxcpm_server.speech.service import Service

# Encoded pieces buffered for the event loop; the others wait in the session's own buffer.
_CAPACITY = 4


class SpokenPiece(NamedTuple):
    """A piece of speech: one patch, or a pause.

    data: encoded bytes; may be empty, as codecs buffer samples. sentence: its index from 0; -1 after the last.
    text: the sentence as sent, including surrounding white space. seconds: duration. words: those of a segment that
    ends with this piece, if `timed`.
    """

    data: bytes
    sentence: int
    text: str
    seconds: float
    words: Sequence[Word] = ()


class Flushed(NamedTuple):
    """Marks that everything up to a flush was spoken."""


class SessionStream(Stream[SpokenPiece | Flushed]):
    """Speech of streamed text. It holds a turn only while there is a complete sentence to speak."""

    def __init__(
        self, service: Service, served: ServedBundle, owner: str, session: Session, seed: int | None, encoder: Encoder
    ) -> None:  # fmt: skip
        super().__init__(service, served, owner, _CAPACITY)
        self._session = session
        self.seed = seed
        """The seed that reproduces this speech from the same text, however it is fragmented."""
        self.encoder = encoder
        self.speaking = False  # whether it speaks or waits for a turn
        self.timed = False  # whether its pieces have words
        self.has_words = False  # whether there was a letter or digit
        self.characters = 0
        self._flushes = 0
        self._last_flush: int | None = None
        self._wakeup = threading.Event()
        self._entering: concurrent.futures.Future[None] | None = None

    @classmethod
    async def open(
        cls, service: Service, served: ServedBundle, owner: str, request: Request, encoder: Encoder
    ) -> SessionStream:  # fmt: skip
        """Open a session and start its stream. Raises the errors of `VoxCPM.session`."""
        seed = first_seed(request.seed)
        # The session takes a turn only when there is text, by which time `stream` is set.
        stream: SessionStream
        session = await run_in_threadpool(
            served.tts.session_for,
            replace(request, seed=seed),
            buffer_seconds=service.settings.buffer_seconds,
            turn=lambda: stream.turn(),  # noqa: PLW0108
        )
        stream = cls(service, served, owner, session, seed, encoder)
        stream.start()
        return stream

    def push(self, text: str) -> None:
        """Append text. Raises ApiError (400) if the speech has too many characters."""
        maximum = self.service.settings.max_characters
        self.characters += len(text)
        self.has_words = self.has_words or any(map(str.isalnum, text))
        if self.characters > maximum:
            message = f"text: expected at most {maximum} characters in one speech, got {self.characters}"
            raise ApiError(400, message, param="text", code="string_above_max_length")
        if not self.cancel.cancelled:
            self._session.push_text(text)
            self._wakeup.set()

    def flush(self) -> None:
        """Speak everything pushed so far, even an incomplete sentence; a `Flushed` follows."""
        if not self.cancel.cancelled:
            # Otherwise words may follow.
            if self.has_words or self._last_flush is not None:
                self._session.flush()
            self._flushes += 1
            self._wakeup.set()

    def finish(self) -> None:
        """Flush and end the stream. Raises InputError if there was text, but nothing to say in it."""
        self._last_flush = self._flushes + 1
        self.flush()

    async def aclose(self) -> None:
        """See `Stream`."""
        self.cancel.cancel()
        self._session.cancel()
        self._wakeup.set()
        if self._entering is not None:
            self._entering.cancel()
        await super().aclose()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold a turn, on the session's thread. Raises ApiError if the queue is full, and Cancelled."""
        self.speaking = True
        self.requested_at = self.requested_at or time.perf_counter()
        try:
            self._entering = asyncio.run_coroutine_threadsafe(self.enter(), self.loop)
            if self.cancel.cancelled:
                self._entering.cancel()
            try:
                self._entering.result()
            except concurrent.futures.CancelledError:
                raise Cancelled("the speech was cancelled while waiting for a turn") from None
            began = time.perf_counter()
            yield
            self.work_seconds += time.perf_counter() - began
        finally:
            self.call_on_loop(self.leave)
            self.speaking = False

    def generate(self) -> Iterator[SpokenPiece | Flushed]:
        """Generate pieces until the last flush is spoken."""
        session, caught_up, kept_up = self._session, 0, True
        limit, buffer_seconds = self.service.settings.max_audio_seconds, self.service.settings.buffer_seconds
        with session:
            while True:
                flushes = self._flushes
                chunk = session.next_audio_chunk()
                self.cancel.check()
                if chunk is not None:
                    self.count_audio(len(chunk.pcm) / session.sample_rate)
                    if self.audio_seconds > limit:
                        raise speech_too_long(limit)
                    # While the session waits for a slow reader, its time does not measure its speed.
                    kept_up = kept_up and session.buffered_seconds < buffer_seconds / 2
                    yield self._encode(chunk, session.sample_rate)
                elif self._last_flush is not None and flushes >= self._last_flush:
                    yield SpokenPiece(self.encoder.finish(), -1, "", 0.0)
                    break
                elif flushes > caught_up:
                    caught_up = flushes
                    yield Flushed()
                else:
                    self._wakeup.wait()
                    self._wakeup.clear()
        self.work_seconds *= kept_up

    def _encode(self, chunk: AudioChunk, rate: int) -> SpokenPiece:
        audio = chunk.pcm.astype(np.float32) / np.float32(PEAK)
        self.note(chunk.words, chunk.spoken.replaced if chunk.spoken is not None else "")
        words = self.encoder.heard(chunk.words) if self.timed else ()
        return SpokenPiece(self.encoder.encode(audio), chunk.sentence, chunk.text, len(audio) / rate, words)
