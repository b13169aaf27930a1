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
from voxcpm_runtime.argument_types import real_number, text_argument, wrong_type
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

    The session speaks on its own thread, which exists only while there are complete sentences to speak. At most
    `buffer_seconds` of audio wait to be read: then speaking pauses until a chunk is read. At most MAX_CHARACTERS of
    text wait. One thread may push text while another one reads; any thread may cancel. Leaving the `with` block closes
    the session and drops unread audio.

    narrate: the function that speaks. split: cuts a sentence into segments, none if there is nothing to say. seed:
    identifies everything that the sound depends on except for the text, for `state_id`. turn: makes a context manager,
    entered (it may block) when a sentence is complete and left when all complete sentences are spoken, so that
    sessions can share step models. It may be left on another thread than it was entered on. Raises InputError for a
    buffer of less than one sample or more than an hour.
    """

    def __init__(
        self, narrate: Narrate, sample_rate: int, *, split: Callable[[str], list[Segment]] = one_segment,
        seed: bytes = b"", buffer_seconds: float = BUFFER_SECONDS,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:  # fmt: skip
        self.sample_rate = sample_rate
        if not 1 / sample_rate <= real_number(buffer_seconds) <= MAX_BUFFER_SECONDS:
            raise wrong_type(
                buffer_seconds, "buffer_seconds", f"a number from one sample to {MAX_BUFFER_SECONDS} s"
            )
        capacity = int(buffer_seconds * sample_rate)
        if not callable(turn):
            raise wrong_type(turn, "turn", "a function that makes a context manager")
        chain = hashlib.sha256(seed).digest()
        self._speech = ThreadedSpeech(narrate, sample_rate, capacity, split, turn, chain)
        # A session that is dropped without being closed ends its thread; at exit, `threaded_speech` does.
        weakref.finalize(self, self._speech.cancel).atexit = False

    def push_text(self, text: str) -> None:
        """Append a fragment of text, which may end anywhere, even within a surrogate pair.

        After an error, which `next_audio_chunk` raises, text is not spoken. Raises InputError if `text` is not a str or
        not valid Unicode, if more than MAX_CHARACTERS would wait, and after `cancel` or `close`.
        """
        self._speech.push_text(text_argument(text, "text"))

    def flush(self) -> None:
        """Speak all text pushed so far, including an unfinished last sentence. More may be pushed afterwards.

        Raises InputError after `cancel` or `close`, and, without speaking, if the text ends within a surrogate pair.
        """
        self._speech.flush()

    def next_audio_chunk(self, timeout: float | None = None) -> AudioChunk | None:
        """The next chunk; None after `timeout` seconds without one, or when the session is `finished`.

        An error of the session's thread is raised after the chunks before it, and by every later call: InputError for
        a sentence that cannot be spoken.
        """
        if timeout is not None and not 0 <= real_number(timeout) <= threading.TIMEOUT_MAX:
            raise wrong_type(timeout, "timeout", "a number of seconds from 0, or None for no limit")
        return self._speech.next_audio_chunk(timeout)

    def __iter__(self) -> Iterator[AudioChunk]:
        """All chunks until the session is `finished`, which takes a `flush`, `cancel` or `close`."""
        while (chunk := self.next_audio_chunk()) is not None:
            yield chunk

    @property
    def finished(self) -> bool:
        """Whether all text was flushed, spoken and read, or the session was cancelled; False before the first flush."""
        return self._speech.finished

    @property
    def buffered_seconds(self) -> float:
        """Seconds of audio that wait to be read."""
        return self._speech.buffered_seconds

    def cancel(self) -> None:
        """End the speech at its next step, and drop unread audio. Returns immediately."""
        self._speech.cancel()

    def close(self) -> None:
        """Cancel, and join the thread. Closing again is a no-op."""
        self._speech.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
