"""How long an utterance should be for its text, and what is suspicious about one that is not.

With a `speech.json` (`SpeechProfile`) the expected time follows from the number of letters and the pace of the voice.
Without one upstream's rule holds: speech is too long from so many patches for each text token on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from voxcpm_constants.speech_profile import SpeechProfile

Reason = Literal["", "long", "short", "cut"]
"""Why speech is suspicious: too long or too short for its text, or cut off by the KV cache; empty if it is not."""

# Shares of the expected time at which speech is suspicious, and at which an attempt is hopeless and ended. Good speech
# of the built-in voice takes 0.8 to 1.3 times the time expected at its pace (TRIALS.md, speech-json).
_LONG, _SHORT, _ENDED = 1.4, 0.6, 2.0
# Seconds that any text may take beyond the expected time: a word or two may be said slowly.
_MORE = 0.8
_MORE_THAN_MIN_LEN = 3
"""Speech counts as too long from min_len + 3 patches at the earliest: the shortest speech has min_len + 2."""
_PACES = (0.8, 1.5)
"""Least and greatest pace that is believed; a prompt with long silence, or a wrong transcript, has another."""


@dataclass(frozen=True)
class ExpectedLength:
    """The length that an utterance should have; make one with `expected_length` or `upstream_length`."""

    seconds: float | None
    """Expected seconds of speech; None without a `speech.json`."""
    patch_seconds: float
    """Seconds of a patch."""
    long_from: float
    """Patches from which the speech is suspiciously long; infinity for never."""
    short_below: float = 0.0
    """Patches below which speech that has ended is suspiciously short."""
    maximum: float = math.inf
    """Patches at which an attempt is ended, as it is hopeless."""

    def reason(self, patches: int, *, stopped: bool) -> Reason:
        """What is suspicious about speech of so many patches. stopped: whether the stop head has ended it."""
        if patches >= self.long_from:
            return "long"
        return "short" if stopped and patches < self.short_below else ""

    def badness(self, patches: int, *, stopped: bool) -> tuple[bool, float]:
        """How bad speech of so many patches is, to be compared; equal for all if no length is expected.

        Speech that the stop head has not ended is worse than any other: its real length is not known. Otherwise the
        distance from the expected length decides, as the logarithm of their ratio.
        """
        if self.seconds is None:
            return False, 0.0
        return not stopped, abs(math.log(patches * self.patch_seconds / self.seconds))


def letters_in(text: str) -> int:
    """Number of letters and digits of a text, by which its expected time is counted."""
    return sum(map(str.isalnum, text))


def pace(profile: SpeechProfile, letters: int, seconds: float) -> float:
    """A prompt's time for so many spoken letters, relative to the expected time; 1 for a prompt without letters."""
    if not letters:
        return 1.0
    minimum, maximum = _PACES
    return min(max(seconds / profile.expected_seconds(letters), minimum), maximum)


def expected_length(
    profile: SpeechProfile, letters: int, patch_seconds: float, *, pace: float = 1.0, min_len: int = 0
) -> ExpectedLength:
    """The length of a text of so many letters. pace: see `pace`. min_len: the option; its length is not too long."""
    seconds = profile.expected_seconds(max(letters, 1)) * pace
    longest = max(max(_LONG * seconds, seconds + _MORE) / patch_seconds, min_len + _MORE_THAN_MIN_LEN)
    return ExpectedLength(
        seconds=seconds,
        patch_seconds=patch_seconds,
        long_from=longest,
        short_below=_SHORT * seconds / patch_seconds,
        maximum=math.ceil(max((_ENDED * seconds + _MORE) / patch_seconds, longest)),
    )


def upstream_length(
    tokens: int, patch_seconds: float, ratio: float, context: int, *, min_len: int = 0
) -> ExpectedLength:
    """Upstream's rule: too long from `ratio` patches for each text token on, `context` patches of a prompt counted.

    min_len: the option; unlike upstream's, its length is not too long.
    """
    return ExpectedLength(None, patch_seconds, max(tokens * ratio - context, min_len + _MORE_THAN_MIN_LEN))
