"""Estimated times of characters: those of a sentence, spread over its audio as it is made."""

from __future__ import annotations

from typing import Any

# Typical for English, until the first sentence shows the pace of this voice.
_USUAL_CHARACTERS_A_SECOND = 15.0


class Alignment:
    """Spreads the characters of each sentence over its pieces of audio, at the pace of the sentence before.

    The length of a sentence is unknown when its first piece is sent. So a slower sentence runs out of characters early,
    and the rest of a faster one is placed at its end.

    restarts: whether times count from the last `taken`, not from the beginning.
    """

    def __init__(self, *, restarts: bool = True) -> None:
        self._restarts = restarts
        self._pace = _USUAL_CHARACTERS_A_SECOND
        self._sentence = -1
        self._text = ""
        self._placed = 0
        self._seconds = 0.0
        # Characters with the seconds at which they begin, since the start or the last `taken`.
        self._begun: list[tuple[str, float]] = []
        self._now = 0.0

    def add(self, sentence: int, text: str, seconds: float) -> None:
        """Place the characters of a piece of audio. sentence, text: the sentence's index and text."""
        if sentence != self._sentence:
            self.finish()
            self._sentence, self._text = sentence, text
        until = min(len(self._text), round((self._seconds + seconds) * self._pace))
        more = self._text[self._placed : until]
        self._begun += [(c, self._now + seconds * i / len(more)) for i, c in enumerate(more)]
        self._placed += len(more)
        self._seconds += seconds
        self._now += seconds

    def finish(self) -> None:
        """Place the rest of the sentence at its end, and learn its pace."""
        self._begun += [(character, self._now) for character in self._text[self._placed :]]
        if self._seconds and self._text:
            self._pace = len(self._text) / self._seconds
        self._text, self._placed, self._seconds = "", 0, 0.0

    def taken(self) -> dict[str, Any] | None:
        """The characters placed since the last call, with times in milliseconds; None if there are none."""
        begun, now = self._begun, self._now
        if not begun:
            return None
        self._begun, self._now = [], 0.0 if self._restarts else now
        starts = [round(1000 * at) for _, at in begun]
        ends = [*starts[1:], round(1000 * now)]
        return {
            "chars": [character for character, _ in begun],
            "charStartTimesMs": starts,
            "charDurationsMs": [end - start for start, end in zip(starts, ends, strict=True)],
        }
