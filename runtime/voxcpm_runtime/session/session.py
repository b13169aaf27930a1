"""Speech while its text is being written: text comes in fragments, audio goes out in chunks."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING

from voxcpm_constants.bounds import MAX_BUFFER_SECONDS
from voxcpm_constants.errors import InputError
from voxcpm_runtime.argument_types import real_number, wrong_type
from voxcpm_runtime.session.threaded_speech import AudioChunk, Narrate, ThreadedSpeech
from voxcpm_runtime.text.segments import Segment, one_segment

if TYPE_CHECKING:
    from typing_extensions import Self

BUFFER_SECONDS = 10.0


class Session:
    """Speaks text while it is written: each sentence as soon as it is complete.

        with tts.session() as session:
            session.push_text("Hello. How")
            session.push_text(" are you?")
            session.flush()
            for chunk in session:
                play(chunk.pcm)

    The session speaks on its own thread, which it has while there is a complete sentence to speak: one that waits for
    text holds none. At most `buffer_seconds` of audio wait to be read: then speaking pauses until a chunk is read, and
    if none is read for a second, the session's thread ends. At most MAX_CHARACTERS of text wait. A long text is cut
    into sentences on the session's thread, while it is spoken. One thread may push text while another one reads; any
    thread may cancel. Leaving the `with` block closes the session and drops audio that was not read.

    narrate: the function that speaks. split: cuts a sentence into segments, none if there is nothing to say. seed:
    identifies all that the sound depends on except for the text, for `state_id`. turn: makes the context manager in
    which the thread speaks. It enters one when a sentence is complete, which may wait, and leaves it when all complete
    sentences are spoken, so that several sessions can share step models in turns. The thread that leaves it may be
    another than the one that entered. Raises InputError for a buffer of less than one sample or more than an hour.
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
        capacity = _buffer_samples(buffer_seconds, sample_rate)
        if not callable(turn):
            raise wrong_type(turn, "turn", "a function that makes a context manager")
        chain = hashlib.sha256(seed).digest()
        self._speech = ThreadedSpeech(narrate, sample_rate, capacity, split, turn, chain)
        # A session that was dropped without being closed ends its thread. An interpreter that ends does so anyway.
        weakref.finalize(self, self._speech.cancel).atexit = False

    def push_text(self, text: str) -> None:
        """Speak this after the text that was pushed before. A fragment may end anywhere, even within a surrogate pair.

        After an error, which `next_audio_chunk` raises, text is not spoken. Raises InputError if `text` is no str or
        not valid Unicode, if more than MAX_CHARACTERS would wait, and after `cancel` or `close`.
        """
        if not isinstance(text, str):
            raise InputError(f"push_text takes text, got {type(text).__name__}", argument="text")
        self._speech.push_text(text)

    def flush(self) -> None:
        """Speak all text that was pushed, including an unfinished last sentence. More may be pushed afterwards.

        Raises InputError after `cancel` or `close`, and, without speaking, if the text ends within a surrogate pair.
        """
        self._speech.flush()

    def next_audio_chunk(self, timeout: float | None = None) -> AudioChunk | None:
        """The next chunk. Waits for it up to `timeout` seconds, by default until the session is `finished`.

        None if there was no chunk in that time, or the session is `finished`. An error of the speaking thread is
        raised after the chunks that were made before it, and by every later call: InputError for a sentence that
        cannot be spoken. Raises InputError for a timeout that is no number of seconds.
        """
        return self._speech.next_audio_chunk(_timeout(timeout))

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
        """Cancel, and wait until its thread, if it has one, has ended. Closing again does nothing."""
        self._speech.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _buffer_samples(seconds: object, sample_rate: int) -> int:
    number = real_number(seconds)
    if not 1 / sample_rate <= number <= MAX_BUFFER_SECONDS:
        raise wrong_type(seconds, "buffer_seconds", f"a number from one sample to {MAX_BUFFER_SECONDS} s")
    return int(number * sample_rate)


def _timeout(seconds: object) -> float | None:
    if seconds is None:
        return None
    number = real_number(seconds)
    if not 0 <= number <= threading.TIMEOUT_MAX:
        raise wrong_type(seconds, "timeout", "a number of seconds from 0, or None for no limit")
    return number
