"""Speech on a thread of its own while there is text to speak: sentences come in, chunks of audio go out."""

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
"""Seconds that the thread waits for room in a full buffer before it ends; a reader that plays takes a chunk sooner."""

ENDING_SECONDS = 10.0
"""Seconds that a program waits for threads when it ends: a step takes less, a turn that never comes takes for ever."""

_BEGUN: weakref.WeakSet[ThreadedSpeech] = weakref.WeakSet()
"""What has had a thread."""


class Narrate(Protocol):
    """A function that speaks segments in one voice, and takes each when all pieces of the one before are out."""

    def __call__(self, segments: Iterable[Segment | None], /, *, cancel: CancelToken) -> Iterator[Piece]:
        """The pieces of the segments' speech, in order. cancel: ends it.

        For None, which says that there is nothing to say yet, it gives a piece without samples; nothing else changes.
        """


@dataclass(frozen=True)
class AudioChunk:
    """A chunk of speech: a part of one sentence, or the pause before it."""

    pcm: Pcm = field(repr=False)
    """16-bit samples (samples,)."""
    offset: int
    """Index of the chunk's first sample, counted from the session's beginning."""
    sentence: int
    """Index of the sentence, from 0; those with nothing to say are not counted."""
    state_id: str
    """16 hexadecimal digits, equal only if everything that determines the sound is equal: the session's seed, what was
    said before, the sentence, and the place in it."""
    text: str
    """The sentence as it was pushed, with the white space around it, and before it whatever had nothing to say."""


@dataclass(eq=False)
class ThreadedSpeech:
    """What a session has in common with its thread, which thus does not refer to the session itself.

    A thread begins when there is text to cut or a sentence to speak, and ends when all complete sentences are spoken,
    or when nobody reads the full buffer. The next thread goes on where it ended: the speech is one iterator, which each
    thread takes pieces from.
    """

    narrate: Narrate
    sample_rate: int
    """Hz"""
    capacity: int
    """Samples that may wait to be read."""
    split: Callable[[str], list[Segment]]
    turn: Callable[[], AbstractContextManager[object]]
    chain: bytes
    """A digest of all that the sound depends on, and of what was said."""

    def __post_init__(self) -> None:
        self._cancel = CancelToken()

        # Used by one thread at a time: its turn while it has one, the sentence that it speaks, the samples so far, and
        # whether the pieces so far are all that there is to say yet.
        self._pieces: Iterator[Piece] | None = None
        self._held = ExitStack()
        self._speaking = False
        self._sentence = -1
        self._text = ""
        self._offset = 0
        self._rests = False

        # Used by all threads under this lock, which signals every change.
        self._changed = threading.Condition()
        self._waiting = TextQueue()
        self._flushed = False
        self._working = False
        self._ended = False
        self._error: Exception | None = None
        self._chunks: deque[AudioChunk] = deque()
        """What waits to be read."""
        self._filled = 0
        """Samples that wait to be read."""
        self._unwritten: deque[AudioChunk] = deque()
        """What is spoken, and for which there is no room yet."""

        self._thread: threading.Thread | None = None
        """The last one."""

    def push_text(self, text: str) -> None:
        """See `Session.push_text`, as for the following; what callers give is checked there."""
        with self._changed:
            self._require_open()
            if text and not self._ended:
                if self._waiting.characters + len(text) > MAX_CHARACTERS:
                    raise InputError(
                        f"{self._waiting.characters} characters wait to be spoken, and {len(text)} more were pushed; "
                        f"expected at most {MAX_CHARACTERS}: push them when more is spoken"
                    )
                self._waiting.push(text)
                self._flushed = False
                self._go_on()

    def flush(self) -> None:
        """Speak the unfinished sentence, too."""
        with self._changed:
            self._require_open()
            self._waiting.flush()
            self._flushed = True
            self._go_on()

    def next_audio_chunk(self, max_seconds: float | None) -> AudioChunk | None:
        """The next chunk, waited for."""
        with self._changed:
            self._changed.wait_for(lambda: self._chunks or self._error or self._is_finished(), max_seconds)
            if self._chunks:
                chunk = self._chunks.popleft()
                self._filled -= len(chunk.pcm)
                self._go_on()
                return chunk
            if self._error is not None:
                raise self._error
            return None

    @property
    def finished(self) -> bool:
        """Whether all is spoken and read."""
        with self._changed:
            return self._is_finished()

    @property
    def buffered_seconds(self) -> float:
        """Seconds of audio that wait to be read."""
        with self._changed:
            return self._filled / self.sample_rate

    def cancel(self) -> None:
        """End the speech, and drop what was not read."""
        pieces = None
        with self._changed:
            self._cancel.cancel()
            self._waiting.clear()
            self._chunks.clear()
            self._unwritten.clear()
            self._filled = 0
            idle = not self._working
            if idle:
                # With it goes a cycle of references, and all that it holds for text to come.
                pieces, self._pieces = self._pieces, None
            self._changed.notify_all()
        if idle:
            # Outside the lock: what speaks is closed, which may wait.
            del pieces
            self._leave_turn()

    def close(self, max_seconds: float | None = None) -> None:
        """Cancel, and wait for the thread; None waits as long as it takes."""
        self.cancel()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(max_seconds)

    def _require_open(self) -> None:
        if self._cancel.cancelled:
            raise InputError("the session is closed; text can be pushed to an open one only")

    def _go_on(self) -> None:
        """Begin a thread if there is something to do and none does it, and signal the change."""
        work = self._has_room() if self._unwritten else bool(self._waiting)
        if work and not self._working and not self._ended and not self._cancel.cancelled:
            # A daemon: a session that nobody closes must not prevent the program from ending.
            thread = threading.Thread(target=self._work, name="voxcpm-session", daemon=True)
            thread.start()
            # Not before: one that the system has refused cannot be waited for.
            self._thread = thread
            _BEGUN.add(self)
            self._working = True
        self._changed.notify_all()

    def _has_room(self) -> bool:
        """Whether there is room for the next chunk, or all is cancelled."""
        return self._cancel.cancelled or self._filled + len(self._unwritten[0].pcm) <= self.capacity

    def _is_finished(self) -> bool:
        waits = self._working or self._waiting or self._unwritten
        spoken = self._ended or (self._flushed and not waits)
        return self._cancel.cancelled or (spoken and not self._chunks and self._error is None)

    def _work(self) -> None:
        """Speak until there is nothing more to say for now, or ever."""
        error = None
        try:
            # When one of these says that the thread ends, all of this may already be the next thread's.
            if not self._write():
                return
            if self._pieces is None:
                self._pieces = self.narrate(self._segments(), cancel=self._cancel)
            for piece in self._pieces:
                if self._rests:
                    if self._leaves():
                        return
                    continue
                self._add(piece)
                if not self._write():
                    return
        except Exception as raised:  # noqa: BLE001 - whatever it is, it is raised where the audio is read
            error = raised
        self._pieces = None
        self._leave_turn()
        with self._changed:
            self._ended, self._working = True, False
            self._error = None if self._cancel.cancelled else error
            self._changed.notify_all()

    def _leaves(self) -> bool:
        """Whether the thread ends, as no sentence is complete. The turn is left in any case."""
        self._leave_turn()
        with self._changed:
            if self._waiting or self._cancel.cancelled:
                return False
            self._working = False
            self._changed.notify_all()
            return True

    def _segments(self) -> Iterator[Segment | None]:
        """The segments of the sentences, as they arrive; None where no sentence is complete."""
        skipped = ""
        while not self._cancel.cancelled:
            sentence = self._next_sentence()
            self._rests = sentence is None
            if sentence is None:
                yield None
                continue
            segments = self.split(sentence)
            if not segments:
                skipped += sentence
                continue
            if not self._speaking:
                self._held.enter_context(self.turn())
                self._speaking = True
            self._sentence += 1
            self._text, skipped = skipped + sentence, ""
            for segment in segments:
                said = segment.text + "\n\n" * segment.ends_paragraph
                self.chain = hashlib.sha256(self.chain + said.encode(errors="surrogatepass")).digest()
            yield from segments

    def _next_sentence(self) -> str | None:
        """The next complete sentence. Text that waits is cut in slices, between which others get the lock."""
        while True:
            with self._changed:
                part = self._waiting.take()
            if part is None or isinstance(part, str):
                return part
            done = part.cut()
            with self._changed:
                self._waiting.put(done)

    def _leave_turn(self) -> None:
        self._speaking = False
        self._held.close()

    def _add(self, piece: Piece) -> None:
        """Make a piece one chunk to be written, or several if it is larger than the whole buffer."""
        pcm = pcm16(piece.audio)
        for start in range(0, len(pcm), self.capacity):
            part = pcm[start : start + self.capacity]
            place = hashlib.sha256(self.chain + self._offset.to_bytes(8, "big")).hexdigest()[:_STATE_DIGITS]
            chunk = AudioChunk(part, self._offset, self._sentence, place, self._text)
            self._offset += len(part)
            with self._changed:
                self._unwritten.append(chunk)

    def _write(self) -> bool:
        """Let what is spoken be read as there is room; False if the thread ends, as nobody reads the full buffer."""
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
def _end_all() -> None:
    """End the threads of sessions that nobody has closed: one that ends with Python, within ONNX Runtime, aborts the
    program.
    """
    begun = list(_BEGUN)
    for speech in begun:
        speech.cancel()
    until = time.monotonic() + ENDING_SECONDS
    for speech in begun:
        speech.close(max(0.0, until - time.monotonic()))


# A forked process has none of the threads; locks that one of them held would never be released there.
os.register_at_fork(after_in_child=_BEGUN.clear)
