"""Whether a listener who plays a stream from its first piece on would have to wait in the middle of it."""

from __future__ import annotations

import math
import time


class Playback:
    """A player that begins with a stream's first piece and plays without a pause, as long as there is audio."""

    def __init__(self) -> None:
        self._heard_until: float | None = None
        self.ran_out = False
        """Whether a piece came when everything before it had been heard, although its text was there by then."""

    def takes(self, seconds: float, text_since: float = -math.inf) -> None:
        """A piece that is heard for so many seconds was made.

        text_since: when its text was there (`time.perf_counter`). A player that had nothing left before that waited
        for the text and not for the speech.
        """
        now = time.perf_counter()
        if self._heard_until is not None and text_since <= self._heard_until < now:
            self.ran_out = True
        self._heard_until = max(now, self._heard_until or now) + seconds

    def pauses(self, seconds: float) -> None:
        """The reader took nothing for so long, and has audio that it has not heard."""
        if self._heard_until is not None:
            self._heard_until += seconds
