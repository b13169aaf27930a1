"""Which characters are spoken when, estimated: the characters of a sentence, spread over its audio as it comes."""

from __future__ import annotations

from typing import Any

# English as it is usually read, until the first sentence has told how fast this voice is.
_USUAL_CHARACTERS_A_SECOND = 15.0
_MILLISECONDS = 1000


class Alignment:
    """Spreads the characters of each sentence over its pieces of audio, at the pace of the sentences before.

    How long a sentence will be is not known when its first piece is sent. So a sentence that is slower than the ones
    before runs out of characters early, and what is left of a faster one stands at its end.

    restarts: whether times count from the last `taken`, and not from the beginning.
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
        """Place what is probably said in a piece of audio. sentence, text: which sentence it is a part of."""
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
        """Place what is left of the sentence at its end, and learn its pace."""
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
