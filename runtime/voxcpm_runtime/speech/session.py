"""`Session`: text is pushed in fragments, and audio is read in chunks."""

from __future__ import annotations

import atexit
import hashlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

from voxcpm_constants.bounds import MAX_BUFFER_SECONDS, MAX_CHARACTERS, MAX_SENTENCE_CHARACTERS
from voxcpm_constants.errors import InputError
from voxcpm_runtime.argument_types import real_number, text_argument, valid_unicode, wrong_type
from voxcpm_runtime.audio.pcm import Pcm, pcm16
from voxcpm_runtime.speech.request import CancelToken
from voxcpm_runtime.speech.results import Piece, SpokenSegment
from voxcpm_runtime.text.control import ControlledCutter, with_control
from voxcpm_runtime.text.segments import Segment, has_words, one_segment, require_words
from voxcpm_runtime.text.sentences import Sentence, SentenceCutter
from voxcpm_runtime.words.words import Word

BUFFER_SECONDS = 10.0
FULL_BUFFER_SECONDS = 0.5
"""Timeout of the thread for room in a full buffer; a player reads a chunk sooner."""
EXIT_TIMEOUT_SECONDS = 10.0
"""Timeout for joining session threads at exit. A step takes less, but a thread may be waiting for its turn."""
_STATE_DIGITS = 16

# Sessions whose threads are joined at exit.
_JOINED_AT_EXIT: weakref.WeakSet[Session] = weakref.WeakSet()


class Narrate(Protocol):
    """A function that speaks segments in one voice, each consumed after all pieces of the previous one."""

    def __call__(self, segments: Iterable[Segment | None], /, *, cancel: CancelToken) -> Iterator[Piece]:
        """Yield the pieces of the speech in order; for None (no text yet), one piece without samples."""


@dataclass(frozen=True)
class AudioChunk:
    """A chunk of speech: a part of one sentence, or the pause before it."""

    pcm: Pcm = field(repr=False)  # 16-bit samples (samples,)
    offset: int  # Index of the first sample, from the beginning of the session
    sentence: int  # Index of the sentence, from 0; sentences with nothing to say are not counted
    state_id: str
    """16 hexadecimal digits, equal only if everything that determines the sound is: the session's seed, the earlier
    text, the sentence, and the position in it."""
    text: str
    """The sentence as pushed, with surrounding white space and preceding text that has nothing to say."""
    spoken: SpokenSegment | None = field(default=None, repr=False)
    """With the last chunk of a sentence, or of each segment of a long one, the whole segment."""

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of the segment that ends here, in seconds from the session's beginning; none before its end."""
        return self.spoken.words if self.spoken else ()


class Session:
    """Speaks text while it is being written, each sentence as soon as it is complete.

        with tts.session() as session:
            session.push_text("Hello. How")
            session.push_text(" are you?")
            session.flush()
            for chunk in session:
                play(chunk.pcm)

    The session speaks on a thread, which starts when a sentence is complete, and ends when all complete sentences are
    spoken or the buffer stays full; a new thread resumes. At most `buffer_seconds` of audio (or one chunk) and
    MAX_CHARACTERS of text are queued. Thread-safe. Leaving the `with` block closes the session and drops unread audio.

    narrate: the function that speaks. split: splits a sentence into segments, none if there is nothing to say.
    split_first: the same for the first sentence, which then keeps a leading bracket. seed: identifies everything that
    the sound depends on except for the text, for `state_id`. turn: returns a context manager, entered (it may
    block) when a sentence is complete and exited when all complete sentences are spoken, so that sessions can share
    step models. It may be exited on another thread. Raises InputError for a buffer of less than one sample or more
    than an hour.
    """

    def __init__(
        self, narrate: Narrate, sample_rate: int, *, split: Callable[[str], list[Segment]] = one_segment,
        split_first: Callable[[str], list[Segment]] | None = None,
        seed: bytes = b"", buffer_seconds: float = BUFFER_SECONDS,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:  # fmt: skip
        self.sample_rate = sample_rate
        if not 1 / sample_rate <= real_number(buffer_seconds) <= MAX_BUFFER_SECONDS:
            raise wrong_type(
                buffer_seconds, "buffer_seconds", f"a number from one sample to {MAX_BUFFER_SECONDS} s"
            )
        if not callable(turn):
            raise wrong_type(turn, "turn", "a function that makes a context manager")
        self._narrate, self._split, self._turn = narrate, split, turn
        self._split_first = split_first
        self._capacity = int(buffer_seconds * sample_rate)
        self._cancel = CancelToken()

        # Used by the speaking thread.
        self._pieces: Iterator[Piece] | None = None
        self._turn_stack = ExitStack()  # The turn
        self._speaking = False  # Whether it has its turn
        self._is_idle = False  # Whether there is nothing to say yet
        self._sentence, self._text, self._offset = -1, "", 0
        self._place = 0  # Characters before `_text`
        self._chain = hashlib.sha256(seed).digest()  # Hash of everything that the sound depends on

        # Shared by all threads under this condition, which is notified of every change.
        self._changed = threading.Condition()
        self._cutter = ControlledCutter() if split_first else SentenceCutter()
        self._wordless: str | None = ""  # The text so far, shortened; None once it has a letter or digit
        self._high = ""  # The high surrogate of a pair that is split between two fragments
        self._sentences: deque[str] = deque()
        self._characters = 0  # Pushed but not spoken, including an unfinished sentence
        self._flushed = False
        self._working = False
        self._ended = False
        self._error: Exception | None = None
        self._chunks: deque[AudioChunk] = deque()  # Unread chunks
        self._buffered_samples = 0  # Unread samples
        self._pending_chunk: AudioChunk | None = None  # A chunk for which the buffer has no room yet
        self._thread: threading.Thread | None = None

    def push_text(self, text: str) -> None:
        """Append a fragment of text, which may end anywhere, even within a surrogate pair.

        A no-op after an error, which `next_audio_chunk` raises. Raises InputError if `text` is not a str or not valid
        Unicode, if more than MAX_CHARACTERS would be queued, and after `cancel` or `close`.
        """
        text_argument(text, "text")
        with self._changed:
            self._require_open()
            if not text or self._ended:
                return
            if self._characters + len(text) > MAX_CHARACTERS:
                raise InputError(
                    f"{self._characters} characters wait to be spoken, and {len(text)} more were pushed; "
                    f"expected at most {MAX_CHARACTERS}: push them later"
                )
            before, self._high = self._high, ""
            text, self._high = _join_surrogates(before + text)
            self._characters += len(text)
            if self._wordless is not None:
                self._wordless = (
                    None if has_words(text) else (self._wordless + text)[:MAX_SENTENCE_CHARACTERS]
                )
            self._flushed = False
            self._add_sentences(self._cutter.push(text))

    def flush(self) -> None:
        """Speak all text pushed so far, including an unfinished last sentence. More may be pushed afterwards.

        Raises InputError after `cancel` or `close`, if the text ends within a surrogate pair, and, as `speak` does, if
        nothing that was pushed has a letter or digit.
        """
        with self._changed:
            self._require_open()
            high, self._high = self._high, ""
            valid_unicode(high, "text")
            self._flushed = True
            self._add_sentences(self._cutter.flush())
            if self._wordless and self._wordless.strip():
                require_words(self._wordless)

    def next_audio_chunk(self, timeout: float | None = None) -> AudioChunk | None:
        """The next chunk; None after `timeout` seconds without one, or when the session is `finished`.

        An error of the session's thread, such as InputError for a sentence that cannot be spoken, is raised after the
        chunks before it, and by every later call.
        """
        if timeout is not None and not 0 <= real_number(timeout) <= threading.TIMEOUT_MAX:
            raise wrong_type(timeout, "timeout", "a number of seconds from 0, or None for no limit")
        with self._changed:
            self._changed.wait_for(lambda: self._chunks or self._error or self._is_finished(), timeout)
            if self._chunks:
                chunk = self._chunks.popleft()
                self._buffered_samples -= len(chunk.pcm)
                self._wake()
                return chunk
            if self._error is not None:
                raise self._error
            return None

    def __iter__(self) -> Iterator[AudioChunk]:
        """Yield chunks until the session is `finished`, which requires `flush`, `cancel` or `close`."""
        while (chunk := self.next_audio_chunk()) is not None:
            yield chunk

    @property
    def finished(self) -> bool:
        """Whether all text was flushed, spoken and read, or the session was cancelled."""
        with self._changed:
            return self._is_finished()

    @property
    def buffered_seconds(self) -> float:
        """Seconds of unread audio."""
        with self._changed:
            return self._buffered_samples / self.sample_rate

    def cancel(self) -> None:
        """Cancel the speech before its next step, and drop unread audio. Returns immediately."""
        pieces = None
        with self._changed:
            self._cancel.cancel()
            self._sentences.clear()
            self._chunks.clear()
            self._pending_chunk, self._buffered_samples = None, 0
            idle = not self._working
            if idle:
                # Break a reference cycle that keeps the KV caches alive.
                pieces, self._pieces = self._pieces, None
            self._changed.notify_all()
        if idle:
            # Not under the lock: closing the speech may block.
            del pieces
            self._leave_turn()

    def close(self) -> None:
        """Cancel, and join the thread. A second call is a no-op."""
        self.cancel()
        self._join(None)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _join(self, timeout: float | None) -> None:
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _require_open(self) -> None:
        if self._cancel.cancelled:
            raise InputError("the session is closed; push text to an open one")

    def _add_sentences(self, sentences: list[Sentence]) -> None:
        self._sentences.extend(sentence.text for sentence in sentences)
        self._wake()

    def _wake(self) -> None:
        """Start a thread if there is work and none is running, and notify waiters."""
        work = self._sentences if self._pending_chunk is None else self._has_room()
        if work and not self._working and not self._ended and not self._cancel.cancelled:
            # A daemon, so that an unclosed session does not keep the program running.
            thread = threading.Thread(target=self._work, name="voxcpm-session", daemon=True)
            thread.start()
            # After the start, which may fail.
            self._thread = thread
            _JOINED_AT_EXIT.add(self)
            self._working = True
        self._changed.notify_all()

    def _has_room(self) -> bool:
        """Whether the buffer has room for the next chunk: always if it is empty, and after cancellation."""
        chunk = self._pending_chunk
        return (
            chunk is None
            or not self._buffered_samples
            or self._buffered_samples + len(chunk.pcm) <= self._capacity
        )

    def _is_finished(self) -> bool:
        waits = self._working or self._sentences or self._pending_chunk
        spoken = self._ended or (self._flushed and not waits)
        return self._cancel.cancelled or (spoken and not self._chunks and self._error is None)

    def _work(self) -> None:
        """Run the thread: speak until there is nothing to say, or the buffer stays full."""
        error = None
        try:
            # If `_write` or `_end_if_idle` end this thread, the next one may already be running.
            if not self._write():
                return
            if self._pieces is None:
                self._pieces = self._narrate(self._segments(), cancel=self._cancel)
            for piece in self._pieces:
                if self._is_idle:
                    if self._end_if_idle():
                        return
                    continue
                if len(piece.audio):
                    self._pending_chunk = self._chunk(piece)
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

    def _end_if_idle(self) -> bool:
        """Leave the turn. Returns True to end the thread, unless a sentence has arrived meanwhile."""
        self._leave_turn()
        with self._changed:
            if self._sentences or self._cancel.cancelled:
                return False
            self._working = False
            self._changed.notify_all()
            return True

    def _segments(self) -> Iterator[Segment | None]:
        """Yield the segments of the sentences as they arrive; None while no sentence is complete."""
        skipped = ""
        while not self._cancel.cancelled:
            with self._changed:
                sentence = self._sentences.popleft() if self._sentences else ""
                self._characters -= len(sentence)
            self._is_idle = not sentence
            if not sentence:
                yield None
                continue
            segments = (self._split_first or self._split)(sentence)
            self._split_first = None
            if not segments:
                skipped += sentence
                continue
            if not self._speaking:
                self._turn_stack.enter_context(self._turn())
                self._speaking = True
            self._sentence += 1
            self._place += len(self._text)
            self._text, skipped = skipped + sentence, ""
            for segment in segments:
                said = with_control(segment.text, segment.control) + "\n\n" * segment.ends_paragraph
                self._chain = hashlib.sha256(self._chain + said.encode(errors="surrogatepass")).digest()
            yield from segments

    def _leave_turn(self) -> None:
        self._speaking = False
        self._turn_stack.close()

    def _chunk(self, piece: Piece) -> AudioChunk:
        place = hashlib.sha256(self._chain + self._offset.to_bytes(8, "big")).hexdigest()[:_STATE_DIGITS]
        spoken = piece.spoken
        if spoken is not None:
            spoken = replace(spoken, place=self._place + max(self._text.find(spoken.text), 0))
        chunk = AudioChunk(pcm16(piece.audio), self._offset, self._sentence, place, self._text, spoken)
        self._offset += len(chunk.pcm)
        return chunk

    def _write(self) -> bool:
        """Move a chunk to the buffer when it has room. Returns False to end the thread, if the buffer stays full."""
        with self._changed:
            room = self._changed.wait_for(self._has_room, FULL_BUFFER_SECONDS)
            self._cancel.check()
            if not room:
                self._working = False
            elif self._pending_chunk is not None:
                self._buffered_samples += len(self._pending_chunk.pcm)
                self._chunks.append(self._pending_chunk)
                self._pending_chunk = None
                self._changed.notify_all()
            return room


def _join_surrogates(text: str) -> tuple[str, str]:
    """A fragment with its surrogate pairs joined, and the high surrogate at its end, if any.

    Raises InputError for any other lone surrogate.
    """
    high = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    try:
        return text.removesuffix(high).encode("utf-16-le", "surrogatepass").decode("utf-16-le"), high
    except UnicodeDecodeError:
        return valid_unicode(text, "text"), ""


@atexit.register
def _join_all() -> None:
    """Join the threads of unclosed sessions: ONNX Runtime aborts a process that exits while it computes."""
    started = list(_JOINED_AT_EXIT)
    for session in started:
        session.cancel()
    until = time.monotonic() + EXIT_TIMEOUT_SECONDS
    for session in started:
        session._join(max(0.0, until - time.monotonic()))  # noqa: SLF001


# A forked process has no such threads, and their locks would never be released there.
os.register_at_fork(after_in_child=_JOINED_AT_EXIT.clear)
