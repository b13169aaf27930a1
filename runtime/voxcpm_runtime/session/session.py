"""Speech while its text is being written: text comes in fragments, audio goes out in chunks."""

from __future__ import annotations

import hashlib
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from numbers import Real
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from voxcpm_constants.bounds import MOST_BUFFER_SECONDS
from voxcpm_constants.errors import InputError
from voxcpm_runtime.audio.pcm import Pcm, pcm16
from voxcpm_runtime.session.ring_buffer import RingBuffer
from voxcpm_runtime.speech.cancellation import CancelToken
from voxcpm_runtime.speech.results import Piece
from voxcpm_runtime.text.segments import Segment, one_segment
from voxcpm_runtime.text.sentences import Sentence, SentenceCutter
from voxcpm_runtime.text.words import valid_unicode

if TYPE_CHECKING:
    from typing_extensions import Self

BUFFER_SECONDS = 10.0
_STATE_DIGITS = 16


class Narrate(Protocol):
    """A function that speaks segments in one voice, and takes each when all pieces of the one before are out."""

    def __call__(self, segments: Iterable[Segment], /, *, cancel: CancelToken) -> Iterator[Piece]:
        """The pieces of the segments' speech, in order. cancel: ends it."""


@dataclass(frozen=True)
class AudioChunk:
    """A chunk of speech: a part of one sentence, or the pause before it."""

    pcm: Pcm
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


class _Chunk(NamedTuple):
    """An `AudioChunk` whose samples are in the ring buffer."""

    samples: int
    offset: int
    sentence: int
    state_id: str
    text: str


class _Speech:
    """What a session has in common with its thread, which thus does not refer to the session itself."""

    def __init__(
        self,
        narrate: Narrate,
        sample_rate: int,
        *,
        split: Callable[[str], list[Segment]] = one_segment,
        seed: bytes = b"",
        buffer_seconds: float = BUFFER_SECONDS,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._sample_rate = sample_rate
        self._capacity = _buffer_samples(buffer_seconds, sample_rate)
        self._narrate = narrate
        self._split = split
        self._turn = turn
        self._cancel = CancelToken()

        # Used by the thread alone: its turn while it has one, the sentence that it speaks, the samples so far, a digest
        # of what was said.
        self._held = ExitStack()
        self._speaking = False
        self._sentence = -1
        self._text = ""
        self._offset = 0
        self._chain = hashlib.sha256(seed).digest()

        # Used by all threads under this lock, which signals every change.
        self._changed = threading.Condition()
        self._cutter = SentenceCutter()
        self._sentences: deque[str] = deque()
        self._flushed = False
        self._waiting = True  # for text
        self._ended = False
        self._error: Exception | None = None
        self._ring = RingBuffer(self._capacity)
        self._chunks: deque[_Chunk] = deque()

        self._thread: threading.Thread | None = None

    def push_text(self, text: str) -> None:
        if not isinstance(text, str):
            raise InputError(f"push_text takes text, got {type(text).__name__}")
        valid_unicode(text, "text")
        with self._changed:
            self._require_open()
            if text and not self._ended:
                self._flushed = False
                self._add(self._cutter.push(text))

    def flush(self) -> None:
        with self._changed:
            self._require_open()
            self._flushed = True
            self._add(self._cutter.flush())

    def next_audio_chunk(self, timeout: float | None = None) -> AudioChunk | None:
        most_seconds = _timeout(timeout)
        with self._changed:
            self._changed.wait_for(lambda: self._chunks or self._error or self._is_finished(), most_seconds)
            if self._chunks:
                chunk = self._chunks.popleft()
                pcm = self._ring.read(chunk.samples)
                self._changed.notify_all()
                return AudioChunk(pcm, chunk.offset, chunk.sentence, chunk.state_id, chunk.text)
            if self._error is not None:
                raise self._error
            return None

    @property
    def finished(self) -> bool:
        with self._changed:
            return self._is_finished()

    @property
    def buffered_seconds(self) -> float:
        with self._changed:
            return self._ring.filled / self._sample_rate

    def cancel(self) -> None:
        with self._changed:
            self._cancel.cancel()
            self._sentences.clear()
            self._chunks.clear()
            self._ring = RingBuffer(0)
            self._changed.notify_all()

    def close(self) -> None:
        self.cancel()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    def _require_open(self) -> None:
        if self._cancel.cancelled:
            raise InputError("the session is closed; text can be pushed to an open one only")

    def _add(self, sentences: list[Sentence]) -> None:
        self._sentences.extend(sentence.text for sentence in sentences)
        if self._sentences and self._thread is None:
            # A daemon: a session that nobody closes must not prevent the program from ending.
            self._thread = threading.Thread(target=self._work, name="voxcpm-session", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _is_finished(self) -> bool:
        spoken = self._ended or (self._flushed and self._waiting and not self._sentences)
        return self._cancel.cancelled or (spoken and not self._chunks and self._error is None)

    def _work(self) -> None:
        error = None
        try:
            for piece in self._narrate(self._segments(), cancel=self._cancel):
                self._write(piece)
        except Exception as raised:  # noqa: BLE001 - whatever it is, it is raised where the audio is read
            error = raised
        finally:
            self._leave_turn()
            with self._changed:
                self._ended = True
                self._error = None if self._cancel.cancelled else error
                self._changed.notify_all()

    def _segments(self) -> Iterator[Segment]:
        """The segments of the sentences, as they arrive."""
        skipped = ""
        while (sentence := self._next_sentence()) is not None:
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
        """The next sentence, waited for without a turn; None after `cancel`."""
        with self._changed:
            if self._sentences and not self._cancel.cancelled:
                self._waiting = False
                return self._sentences.popleft()
        self._leave_turn()
        with self._changed:
            self._waiting = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._sentences or self._cancel.cancelled)
            if self._cancel.cancelled:
                return None
            self._waiting = False
            return self._sentences.popleft()

    def _leave_turn(self) -> None:
        self._speaking = False
        self._held.close()

    def _write(self, piece: Piece) -> None:
        """Put a piece into the ring buffer as one chunk, or as several if it is larger than the whole buffer."""
        pcm = pcm16(piece.audio)
        for start in range(0, len(pcm), self._capacity):
            part = pcm[start : start + self._capacity]
            place = hashlib.sha256(self._chain + self._offset.to_bytes(8, "big"))
            self._put(
                _Chunk(
                    len(part), self._offset, self._sentence, place.hexdigest()[:_STATE_DIGITS], self._text
                ),
                part,
            )
            self._offset += len(part)

    def _put(self, chunk: _Chunk, pcm: Pcm) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._cancel.cancelled or self._ring.free >= chunk.samples)
            self._cancel.check()
            self._ring.write(pcm)
            self._chunks.append(chunk)
            self._changed.notify_all()


class Session:
    """Speaks text while it is written: each sentence as soon as it is complete.

        with tts.session() as session:
            session.push_text("Hello. How")
            session.push_text(" are you?")
            session.flush()
            for chunk in session:
                play(chunk.pcm)

    The session speaks on its own thread, from its first sentence until it is closed, or nothing refers to it any more.
    Audio waits in a ring buffer of `buffer_seconds`; while it is full, the thread waits until a chunk is read. There is
    no limit to the text that waits. One thread may push text while another one reads; any thread may cancel. Leaving
    the `with` block closes the session and drops audio that was not read.

    narrate: the function that speaks. split: cuts a sentence into segments, none if there is nothing to say. seed:
    identifies all that the sound depends on except for the text, for `state_id`. turn: makes the context manager in
    which the thread speaks. It enters one when a sentence is complete, which may wait, and leaves it when all complete
    sentences are spoken, so that several sessions can share step models in turns. Raises InputError for a buffer of
    less than one sample or more than an hour.
    """

    def __init__(
        self,
        narrate: Narrate,
        sample_rate: int,
        *,
        split: Callable[[str], list[Segment]] = one_segment,
        seed: bytes = b"",
        buffer_seconds: float = BUFFER_SECONDS,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.sample_rate = sample_rate
        self._speech = _Speech(
            narrate,
            sample_rate,
            split=split,
            seed=seed,
            buffer_seconds=buffer_seconds,
            turn=turn,
        )
        # A session that was dropped without being closed ends its thread. An interpreter that ends does so anyway.
        weakref.finalize(self, self._speech.cancel).atexit = False

    def push_text(self, text: str) -> None:
        """Speak this after the text that was pushed before. A fragment may end anywhere, even within a word.

        After an error, which `next_audio_chunk` raises, text is not spoken. Raises InputError if `text` is no str or
        not valid Unicode, and after `cancel` or `close`.
        """
        self._speech.push_text(text)

    def flush(self) -> None:
        """Speak all text that was pushed, including an unfinished last sentence. More may be pushed afterwards.

        Raises InputError after `cancel` or `close`.
        """
        self._speech.flush()

    def next_audio_chunk(self, timeout: float | None = None) -> AudioChunk | None:
        """The next chunk. Waits for it up to `timeout` seconds, by default until the session is `finished`.

        None if there was no chunk in that time, or the session is `finished`. An error of the speaking thread is
        raised after the chunks that were made before it, and by every later call: InputError for a sentence that
        cannot be spoken. Raises InputError for a timeout that is no number of seconds.
        """
        return self._speech.next_audio_chunk(timeout)

    def __iter__(self) -> Iterator[AudioChunk]:
        """All chunks until the session is `finished`, which takes a `flush`, `cancel` or `close`."""
        while (chunk := self.next_audio_chunk()) is not None:
            yield chunk

    @property
    def finished(self) -> bool:
        """Whether all that was pushed was flushed, spoken and read, or the session was cancelled.

        Pushing text after a flush makes it False again; before the first flush it is False.
        """
        return self._speech.finished

    @property
    def buffered_seconds(self) -> float:
        """Seconds of audio that wait to be read."""
        return self._speech.buffered_seconds

    def cancel(self) -> None:
        """End the speech at its next Euler step, and drop audio that was not read. Returns immediately."""
        self._speech.cancel()

    def close(self) -> None:
        """Cancel, and wait until the thread has ended. Closing again does nothing."""
        self._speech.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _buffer_samples(seconds: object, sample_rate: int) -> int:
    number = _number(seconds)
    if not 1 / sample_rate <= number <= MOST_BUFFER_SECONDS:
        raise InputError(
            f"buffer_seconds must be a number from one sample to {MOST_BUFFER_SECONDS} s, got {seconds!r}"
        )
    return int(number * sample_rate)


def _timeout(seconds: object) -> float | None:
    if seconds is None:
        return None
    number = _number(seconds)
    if not 0 <= number <= threading.TIMEOUT_MAX:
        raise InputError(f"timeout must be a number of seconds from 0, or None for no limit, got {seconds!r}")
    return number


def _number(value: object) -> float:
    """The value as a float; NaN, which no range contains, for what is no number."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
