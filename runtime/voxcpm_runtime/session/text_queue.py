"""Text that waits to be spoken: what is not cut yet, and the sentences that are."""

from __future__ import annotations

from collections import deque

from voxcpm_constants.bounds import MAX_READ_AT_ONCE
from voxcpm_runtime.argument_types import valid_unicode
from voxcpm_runtime.text.sentences import Sentence, SentenceCutter


class TextQueue:
    """Text in, complete sentences out, in order. Several threads need a lock, but not while a `Slice` is cut.

    What is pushed in small fragments is cut at once, so that a sentence is there as soon as it is complete. Of more
    than MAX_READ_AT_ONCE characters nothing is cut before `take`, which gives it out in slices of that size.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop everything."""
        self.characters = 0
        """Characters that were pushed and not taken, those of an unfinished sentence too."""
        self._high = ""
        """The high surrogate of a pair that was cut between two fragments."""
        self._cutter = SentenceCutter()
        self._sentences: deque[str] = deque()
        self._uncut: deque[str | None] = deque()
        """Text in the order in which it came; None where it was flushed."""
        self._at = 0
        """Characters of the first one that are cut."""
        self._is_cut = False
        """Whether a slice was taken and its sentences are not here yet."""

    def __bool__(self) -> bool:
        """Whether there is a complete sentence, or text that may have one."""
        return bool(self._sentences or self._uncut or self._is_cut)

    def push(self, text: str) -> None:
        """Add text; a high surrogate at its end waits for the next. Raises InputError for half of a surrogate pair."""
        before, self._high = self._high, ""
        text, self._high = joined_surrogates(before + text)
        self.characters += len(text)
        if self._uncut or self._is_cut or len(text) > MAX_READ_AT_ONCE:
            self._uncut.append(text)
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

    def take(self) -> str | Slice | None:
        """The next sentence, or a slice of text to cut and `put` before the next `take`; None if there is neither."""
        if self._sentences:
            sentence = self._sentences.popleft()
            self.characters -= len(sentence)
            return sentence
        if not self._uncut:
            return None
        self._is_cut = True
        text = self._uncut[0]
        part = None if text is None else text[self._at : self._at + MAX_READ_AT_ONCE]
        self._at += MAX_READ_AT_ONCE
        if text is None or self._at >= len(text):
            self._uncut.popleft()
            self._at = 0
        return Slice(self._cutter, part)

    def put(self, done: list[Sentence]) -> None:
        """Add the sentences of the slice that was taken; after `clear` there is none."""
        if self._is_cut:
            self._is_cut = False
            self._add(done)

    def _add(self, sentences: list[Sentence]) -> None:
        self._sentences.extend(sentence.text for sentence in sentences)


class Slice:
    """A part of the text that only one thread cuts."""

    def __init__(self, cutter: SentenceCutter, text: str | None) -> None:
        self._cutter = cutter
        self._text = text

    def cut(self) -> list[Sentence]:
        """The sentences that are complete with it. It takes time, and needs no lock."""
        return self._cutter.flush() if self._text is None else self._cutter.push(self._text)


def joined_surrogates(text: str) -> tuple[str, str]:
    """A fragment with its surrogate pairs joined, and the high surrogate at its end, whose pair is still to come.

    Raises InputError for any other half of a pair.
    """
    high = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    try:
        return text.removesuffix(high).encode("utf-16-le", "surrogatepass").decode("utf-16-le"), high
    except UnicodeDecodeError:
        return valid_unicode(text, "text"), ""
