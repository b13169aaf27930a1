"""Estimated times of characters: those of a sentence, spread over its audio as it is made."""

from __future__ import annotations

from typing import Any

# Typical for English, until the first sentence shows the pace of this voice.
_USUAL_CHARACTERS_A_SECOND = 15.0
_MILLISECONDS = 1000


class Alignment:
    """Spreads the characters of each sentence over its pieces of audio, at the pace of the sentence before.

    The length of a sentence is unknown when its first piece is sent. So a slower sentence runs out of characters early,
    and the rest of a faster one is placed at its end.

    restarts: whether times count from the last `taken`, not from the beginning.
    """

    def __init__(self, *, restarts: bool = True) -> None:
        self._restarts = restarts
        self._taken_until = 0.0
        self._pace = _USUAL_CHARACTERS_A_SECOND
        self._sentence = -1
        self._text = ""
        self._placed = 0
        self._seconds = 0.0
        # Characters and when they begin, in seconds since the last `taken`.
        self._begun: list[tuple[str, float]] = []
        self._since = 0.0

    def add(self, sentence: int, text: str, seconds: float) -> None:
        """Place the characters of a piece of audio. sentence, text: the sentence's index and text."""
        if sentence != self._sentence:
            self.finish()
            self._sentence, self._text, self._placed, self._seconds = sentence, text, 0, 0.0
        until = min(len(self._text), round((self._seconds + seconds) * self._pace))
        more = self._text[self._placed : until]
        for index, character in enumerate(more):
            self._begun.append((character, self._since + seconds * index / len(more)))
        self._placed += len(more)
        self._seconds += seconds
        self._since += seconds

    def finish(self) -> None:
        """Place the rest of the sentence at its end, and learn its pace."""
        self._begun += [(character, self._since) for character in self._text[self._placed :]]
        if self._seconds and self._text:
            self._pace = len(self._text) / self._seconds
        self._text, self._placed, self._seconds = "", 0, 0.0

    def taken(self) -> dict[str, Any] | None:
        """The characters placed since the last call, with times in milliseconds; None if there are none."""
        if not self._begun:
            return None
        zero = 0.0 if self._restarts else self._taken_until
        starts = [round((zero + at) * _MILLISECONDS) for _, at in self._begun]
        ends = [*starts[1:], round((zero + self._since) * _MILLISECONDS)]
        characters = [character for character, _ in self._begun]
        self._taken_until += self._since
        self._begun, self._since = [], 0.0
        return {
            "chars": characters,
            "charStartTimesMs": starts,
            "charDurationsMs": [end - start for start, end in zip(starts, ends, strict=True)],
        }
