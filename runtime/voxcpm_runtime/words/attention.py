"""Where the letters of a text are in its speech, from the attention of heads that follow the text as it is said."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.words.pauses import Doubles, silences

# Tokens averaged on each side of the attention peak, sought from this many back to three times as many ahead.
_NEAR = 6
# Seconds of the shortest pause, and around it: a word that seems to begin there begins at its end.
_PAUSE, _AROUND = 0.06, 0.05
_WORD_START = re.compile(r"(?<![\w'])\w")


def letter_times(
    said: str,
    places: Sequence[int],
    rows: Doubles,
    shifts: Sequence[float],
    patch_seconds: float,
    audio: Audio,
    sample_rate: int,
) -> Doubles:
    """The same as `pauses.letter_times`, for speech whose attention is known.

    places: where the text's tokens begin in it. rows: attention to them while each patch but the last is fed (patches -
    1, heads, tokens); it may lack tokens at the text's beginning. shifts: of the heads, in seconds (`AlignmentHead`).
    """
    quiet = silences(audio, sample_rate)
    begin, end = quiet[0, 1], quiet[-1, 0]
    count = min(len(places), rows.shape[2])
    fed, tokens = np.arange(1, len(rows) + 1) * patch_seconds, np.arange(count)
    reached = [
        np.interp(tokens, [0, *_followed(rows[:, head, -count:]), count], [begin, *fed + shift, end])
        for head, shift in enumerate(shifts)
    ]
    by_token = [*np.mean(reached, axis=0), end]
    times = np.interp(np.arange(len(said) + 1), [*places[-count:], len(said)], by_token).clip(begin, end)
    reached_at = times.copy()
    starts = {word.start() for word in _WORD_START.finditer(said)}
    # A space takes no time: the word after it begins when the head leaves the word before.
    for place in starts:
        if said[place - 1 : place].isspace():
            times[place] = reached_at[place - 1]
    for first, last in quiet[1:-1][np.diff(quiet[1:-1])[:, 0] >= _PAUSE]:
        near = (times <= last + _AROUND) & (reached_at >= first - _AROUND)
        for place in np.flatnonzero(near[:-1]).tolist():
            if place in starts:
                times[place] = last
            elif not said[place].isalnum():
                times[place] = first
    return np.maximum.accumulate(times)


def _followed(rows: Doubles) -> list[float]:
    """The position that one head has reached at each patch, which never falls (patches,). rows: (patches, tokens)."""
    reached, found = 0.0, []
    for row in rows:
        first = max(0, int(reached) - _NEAR)
        peak = first + int(row[first : int(reached) + 3 * _NEAR].argmax())
        near = range(max(0, peak - _NEAR), min(len(row), peak + _NEAR + 1))
        reached = max(reached, float(np.average(near, weights=row[near.start : near.stop] + 1e-9)))
        found.append(reached)
    return found
