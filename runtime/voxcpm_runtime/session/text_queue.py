"""Text that waits to be spoken: complete sentences, and text that is not cut into sentences yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from voxcpm_constants.bounds import MAX_READ_AT_ONCE
from voxcpm_runtime.argument_types import valid_unicode
from voxcpm_runtime.text.sentences import Sentence, SentenceCutter


class TextQueue:
    """Text in, complete sentences out, in order. Not thread-safe: callers need a lock.

    Small fragments are cut as they are pushed, so that a sentence is available as soon as it is complete. Text of more
    than MAX_READ_AT_ONCE characters is cut on demand, in slices of that size.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop everything."""
        self.characters = 0
        """Characters that were pushed and not taken, including those of an unfinished sentence."""
        self._high = ""  # The high surrogate of a pair that was cut between two fragments
        self._cutter = SentenceCutter()
        self._sentences: deque[str] = deque()
        self._uncut: deque[str | None] = deque()  # Slices of text in order; None for a flush
        self._is_cut = False  # Whether a slice is being cut

    def __bool__(self) -> bool:
        """Whether there is a complete sentence, or text that may have one."""
        return bool(self._sentences or self._uncut or self._is_cut)

    def push(self, text: str) -> None:
        """Add text; a high surrogate at its end waits for the next. Raises InputError for half of a surrogate pair."""
        before, self._high = self._high, ""
        text, self._high = _joined_surrogates(before + text)
        self.characters += len(text)
        if self._uncut or self._is_cut or len(text) > MAX_READ_AT_ONCE:
            slices = range(0, len(text), MAX_READ_AT_ONCE)
            self._uncut.extend(text[start : start + MAX_READ_AT_ONCE] for start in slices)
        else:
            self._add(self._cutter.push(text))

    def flush(self) -> None:
        """End the last sentence. Raises InputError, and ends nothing, if the text ends within a surrogate pair."""
        high, self._high = self._high, ""
        valid_unicode(high, "text")
        if self._uncut or self._is_cut:
            self._uncut.append(None)
        else:
            self._add(self._cutter.flush())

    def take(self) -> str | Callable[[], list[Sentence]] | None:
        """The next sentence; or a function that cuts a slice, slowly and without a lock; None if there is neither.

        The sentences of the slice must be `put` before the next `take`.
        """
        if self._sentences:
            sentence = self._sentences.popleft()
            self.characters -= len(sentence)
            return sentence
        if not self._uncut:
            return None
        self._is_cut = True
        text = self._uncut.popleft()
        return self._cutter.flush if text is None else partial(self._cutter.push, text)

    def put(self, done: list[Sentence]) -> None:
        """Add the sentences of the slice that was taken; a no-op after `clear`."""
        if self._is_cut:
            self._is_cut = False
            self._add(done)

    def _add(self, sentences: list[Sentence]) -> None:
        self._sentences.extend(sentence.text for sentence in sentences)


def _joined_surrogates(text: str) -> tuple[str, str]:
    """A fragment with its surrogate pairs joined, and the high surrogate at its end, whose pair is still to come.

    Raises InputError for any other half of a pair.
    """
    high = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    try:
        return text.removesuffix(high).encode("utf-16-le", "surrogatepass").decode("utf-16-le"), high
    except UnicodeDecodeError:
        return valid_unicode(text, "text"), ""
