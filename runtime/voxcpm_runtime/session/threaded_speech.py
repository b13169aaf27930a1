"""Speech on its own thread while there is text to speak: text in, chunks of audio out."""

from __future__ import annotations

import atexit
import hashlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from voxcpm_constants.bounds import MAX_CHARACTERS
from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.pcm import Pcm, pcm16
from voxcpm_runtime.session.text_queue import TextQueue
from voxcpm_runtime.speech.arguments import CancelToken
from voxcpm_runtime.speech.results import Piece
from voxcpm_runtime.text.segments import Segment

_STATE_DIGITS = 16
LINGER_SECONDS = 0.5
"""How long the thread waits for room in a full buffer before it ends; a reader that plays takes a chunk sooner."""

ENDING_SECONDS = 10.0
"""How long an exiting program waits for session threads. A step takes less; a turn may never come."""

# Sessions that had a thread; they are joined at exit.
_STARTED: weakref.WeakSet[ThreadedSpeech] = weakref.WeakSet()


class Narrate(Protocol):
    """A function that speaks segments in one voice. It takes each when all pieces of the one before are out."""

    def __call__(self, segments: Iterable[Segment | None], /, *, cancel: CancelToken) -> Iterator[Piece]:
        """The pieces of the segments' speech, in order; for None (no text yet), one piece without samples."""


@dataclass(frozen=True)
class AudioChunk:
    """A chunk of speech: a part of one sentence, or the pause before it."""

    pcm: Pcm = field(repr=False)  # 16-bit samples (samples,)
    offset: int  # Index of the chunk's first sample, counted from the session's beginning
    sentence: int  # Index of the sentence, from 0; sentences with nothing to say are not counted
    state_id: str
    """16 hexadecimal digits, equal only if everything that determines the sound is equal: the session's seed, the text
    before, the sentence, and the position in it."""
    text: str
    """The sentence as it was pushed, with the white space around it, and anything before it with nothing to say."""


class ThreadedSpeech:
    """The state that a session shares with its thread, which must not refer to the session itself.

    A thread starts when there is text to cut or a sentence to speak. It ends when all complete sentences are spoken, or
    when nobody reads the full buffer; the next thread continues with the same iterator of pieces.

    capacity: samples that may wait to be read. chain: a digest of everything that the sound depends on. Other
    arguments: see `Session`.
    """

    def __init__(
        self, narrate: Narrate, sample_rate: int, capacity: int, split: Callable[[str], list[Segment]],
        turn: Callable[[], AbstractContextManager[object]], chain: bytes,
    ) -> None:  # fmt: skip
        self._narrate, self._split, self._turn, self._chain = narrate, split, turn, chain
        self._sample_rate, self._capacity = sample_rate, capacity
        self._cancel = CancelToken()

        # Used by one thread at a time: its turn while it has one, the sentence that it speaks, the samples so far, and
        # whether there is nothing more to say for now.
        self._pieces: Iterator[Piece] | None = None
        self._held = ExitStack()
        self._speaking = False
        self._sentence = -1
        self._text = ""
        self._offset = 0
        self._is_idle = False

        # Used by all threads under this lock, which signals every change.
        self._changed = threading.Condition()
        self._waiting = TextQueue()
        self._flushed = False
        self._working = False
        self._ended = False
        self._error: Exception | None = None
        self._chunks: deque[AudioChunk] = deque()  # Chunks that wait to be read
        self._filled = 0  # Samples that wait to be read
        self._unwritten: deque[AudioChunk] = deque()  # Chunks that are spoken, but do not fit the buffer yet
        self._thread: threading.Thread | None = None

    def push_text(self, text: str) -> None:
        """See `Session.push_text`."""
        with self._changed:
            self._require_open()
            if text and not self._ended:
                if self._waiting.characters + len(text) > MAX_CHARACTERS:
                    raise InputError(
                        f"{self._waiting.characters} characters wait to be spoken, and {len(text)} more were pushed; "
                        f"expected at most {MAX_CHARACTERS}: push them later"
                    )
                self._waiting.push(text)
                self._flushed = False
                self._wake()

    def flush(self) -> None:
        """See `Session.flush`."""
        with self._changed:
            self._require_open()
            self._waiting.flush()
            self._flushed = True
            self._wake()

    def next_audio_chunk(self, timeout: float | None) -> AudioChunk | None:
        """See `Session.next_audio_chunk`."""
        with self._changed:
            self._changed.wait_for(lambda: self._chunks or self._error or self._is_finished(), timeout)
            if self._chunks:
                chunk = self._chunks.popleft()
                self._filled -= len(chunk.pcm)
                self._wake()
                return chunk
            if self._error is not None:
                raise self._error
            return None

    @property
    def finished(self) -> bool:
        """See `Session.finished`."""
        with self._changed:
            return self._is_finished()

    @property
    def buffered_seconds(self) -> float:
        """See `Session.buffered_seconds`."""
        with self._changed:
            return self._filled / self._sample_rate

    def cancel(self) -> None:
        """See `Session.cancel`."""
        pieces = None
        with self._changed:
            self._cancel.cancel()
            self._waiting.clear()
            self._chunks.clear()
            self._unwritten.clear()
            self._filled = 0
            idle = not self._working
            if idle:
                # Breaks a reference cycle that holds the KV caches.
                pieces, self._pieces = self._pieces, None
            self._changed.notify_all()
        if idle:
            # Outside the lock: closing the speech may block.
            del pieces
            self._leave_turn()

    def close(self, timeout: float | None = None) -> None:
        """Cancel, and join the thread; None waits as long as it takes."""
        self.cancel()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _require_open(self) -> None:
        if self._cancel.cancelled:
            raise InputError("the session is closed; push text to an open one")

    def _wake(self) -> None:
        """Start a thread if there is work and none does it, and signal the change."""
        work = self._has_room() if self._unwritten else bool(self._waiting)
        if work and not self._working and not self._ended and not self._cancel.cancelled:
            # A daemon: an unclosed session must not keep the program running.
            thread = threading.Thread(target=self._work, name="voxcpm-session", daemon=True)
            thread.start()
            # Only after the start, which the system may refuse.
            self._thread = thread
            _STARTED.add(self)
            self._working = True
        self._changed.notify_all()

    def _has_room(self) -> bool:
        """Whether the next chunk fits the buffer, or the speech is cancelled."""
        return self._cancel.cancelled or self._filled + len(self._unwritten[0].pcm) <= self._capacity

    def _is_finished(self) -> bool:
        waits = self._working or self._waiting or self._unwritten
        spoken = self._ended or (self._flushed and not waits)
        return self._cancel.cancelled or (spoken and not self._chunks and self._error is None)

    def _work(self) -> None:
        """Speak until there is nothing more to say for now, or ever."""
        error = None
        try:
            # When `_write` or `_stops_idle` say that this thread ends, the next one may already be running.
            if not self._write():
                return
            if self._pieces is None:
                self._pieces = self._narrate(self._segments(), cancel=self._cancel)
            for piece in self._pieces:
                if self._is_idle:
                    if self._stops_idle():
                        return
                    continue
                self._add(piece)
                if not self._write():
                    return
        except Exception as raised:  # noqa: BLE001 - it is raised where the audio is read
            error = raised
        self._pieces = None
        self._leave_turn()
        with self._changed:
            self._ended, self._working = True, False
            self._error = None if self._cancel.cancelled else error
            self._changed.notify_all()

    def _stops_idle(self) -> bool:
        """Leave the turn; True if the thread ends, as no sentence has arrived since."""
        self._leave_turn()
        with self._changed:
            if self._waiting or self._cancel.cancelled:
                return False
            self._working = False
            self._changed.notify_all()
            return True

    def _segments(self) -> Iterator[Segment | None]:
        """The segments of the sentences, as they arrive; None while no sentence is complete."""
        skipped = ""
        while not self._cancel.cancelled:
            sentence = self._next_sentence()
            self._is_idle = sentence is None
            if sentence is None:
                yield None
                continue
            segments = self._split(sentence)
            if not segments:
                skipped += sentence
                continue
            if not self._speaking:
                self._held.enter_context(self._turn())
                self._speaking = True
            self._sentence += 1
            self._text, skipped = skipped + sentence, ""
            for segment in segments:
                said = segment.text + "\n\n" * segment.ends_paragraph
                self._chain = hashlib.sha256(self._chain + said.encode(errors="surrogatepass")).digest()
            yield from segments

    def _next_sentence(self) -> str | None:
        """The next complete sentence. Text is cut without the lock."""
        while True:
            with self._changed:
                taken = self._waiting.take()
            if taken is None or isinstance(taken, str):
                return taken
            done = taken()
            with self._changed:
                self._waiting.put(done)

    def _leave_turn(self) -> None:
        self._speaking = False
        self._held.close()

    def _add(self, piece: Piece) -> None:
        """Turn a piece into one chunk, or several if it is larger than the whole buffer."""
        pcm = pcm16(piece.audio)
        for start in range(0, len(pcm), self._capacity):
            part = pcm[start : start + self._capacity]
            place = hashlib.sha256(self._chain + self._offset.to_bytes(8, "big")).hexdigest()[:_STATE_DIGITS]
            chunk = AudioChunk(part, self._offset, self._sentence, place, self._text)
            self._offset += len(part)
            with self._changed:
                self._unwritten.append(chunk)

    def _write(self) -> bool:
        """Move chunks to the buffer as there is room; False if the thread ends, as nobody reads the full buffer."""
        with self._changed:
            while self._unwritten:
                room = self._changed.wait_for(self._has_room, LINGER_SECONDS)
                self._cancel.check()
                if not room:
                    self._working = False
                    return False
                chunk = self._unwritten.popleft()
                self._filled += len(chunk.pcm)
                self._chunks.append(chunk)
                self._changed.notify_all()
            return True


@atexit.register
def _join_all() -> None:
    """End the threads of unclosed sessions: ONNX Runtime aborts a process that exits while it computes."""
    started = list(_STARTED)
    for speech in started:
        speech.cancel()
    until = time.monotonic() + ENDING_SECONDS
    for speech in started:
        speech.close(max(0.0, until - time.monotonic()))


# A forked process has none of the threads; locks that one of them held would never be released there.
os.register_at_fork(after_in_child=_STARTED.clear)
