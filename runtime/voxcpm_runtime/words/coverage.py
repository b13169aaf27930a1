"""Which words of a text its speech says: once, not at all, or twice, from the attention of the alignment heads.

The most likely way through the text is followed while it is spoken (Viterbi): from patch to patch it stays or advances,
or jumps at a cost. A jump back says words again, a jump ahead leaves words out, and speech that ends before the last
word leaves out the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from voxcpm_runtime.text.segments import WIDE
from voxcpm_runtime.words.pauses import Doubles
from voxcpm_runtime.words.written import said_spans

# Thresholds by 818 utterances of the built-in voice, heard by Whisper (TRIALS.md, every-word).
# Letters that a patch of fast speech advances, beyond which each costs 1, and the maximum in letters and in tokens.
_USUAL_ADVANCE, _MAX_ADVANCE, _MAX_TOKENS = 6.0, 10.0, 14
_WIDE_LETTER = 3.0  # Letters that a Chinese or Japanese character counts for
# Added to each share of attention, so that a patch that looks elsewhere costs 4.6. One or two patches do by chance,
# such as at the same words in another place: a jump costs as much as two.
_FLOOR, _JUMP = 0.01, 9.0
_END = 3.0  # Letters before the last one from which speech may end: the head is a patch behind
# Patches without an advance after which the stop head is believed: pauses between sentences have up to 6.
_PATIENCE = 12
# Patches before a jump from which each repair speaks again. From the jump itself, 2 of 64 repairs succeeded, as the
# language model had decided by then; from 2, 4 and 8 patches before it 22, 26 and 30.
_BACK = (2, 4, 6, 8)
_TAIL = 2  # Patches in which the last sound ends, after the head has reached the text's last token


class _Row(NamedTuple):
    """The best ways that end at each token, after one patch."""

    scores: Doubles  # Logarithms of likelihoods (tokens,)
    origins: npt.NDArray[np.intp]  # The token at the patch before (tokens,)
    jumps: npt.NDArray[np.intp]  # The patch of the last jump of each way (tokens,); -1 for none
    advanced: int  # Index of the last patch at which the best way went ahead
    reached: int  # The furthest token of the best ways so far


class Follower:
    """Follows the speech of one segment; patches are fed one after another.

    said: the text as it is said. places: where its tokens begin in it. positions: those of the text in the sequence; it
    may have more tokens before those of `said`, such as a control, or fewer, as the first may be part of a transcript.
    minimum: index of the first patch with which the speech may end.
    """

    def __init__(self, said: str, places: Sequence[int], positions: slice, minimum: int = 0) -> None:
        widths = [_WIDE_LETTER if re.match(f"[{WIDE}]", char) else 1.0 for char in said]
        letters = np.concatenate([[0.0], np.cumsum(widths)])
        last = max((at for at, char in enumerate(said) if char.isalnum()), default=0)
        word = re.search(rf"[{WIDE}]\Z|[^\s{WIDE}]*\Z", said[: last + 1])
        begin = word.start() if word else last
        count = min(len(places), positions.stop - positions.start)
        self._said, self._places = said, list(places[len(places) - count :])
        self._positions = slice(positions.stop - count, positions.stop)
        at = letters[self._places]
        # The last token that begins at or before the place where speech may end.
        end = max(letters[last] - _END, letters[begin])
        self._end = max(int(np.searchsorted(at, end, side="right")) - 1, 0)
        # The cost of an advance that ends at each token, by `_MAX_TOKENS` to 0 tokens.
        self._before = np.concatenate([np.full(_MAX_TOKENS, -np.inf), at])
        self._windows = np.lib.stride_tricks.sliding_window_view(self._before, _MAX_TOKENS + 1)
        self._tokens = np.arange(count)
        steps = at[:, np.newaxis] - self._windows
        self._costs = np.where(steps <= _MAX_ADVANCE, np.minimum(_USUAL_ADVANCE - steps, 0.0), -np.inf)
        self._costs[1:, -2] = 0.0  # The next token, however long this one is
        self._first = np.where(at - at[:1] <= _MAX_ADVANCE, 0.0, -_JUMP)
        self._rows: list[_Row] = []
        # The first patch that may be out of order, by the one before which it shows.
        self._jumps: dict[int, int] = {}
        self._minimum = minimum
        self._final = -1  # Index of the patch that ends the speech whatever the stop head says

    def ends(self, stops: bool, attention: npt.NDArray[np.float32] | None) -> bool:
        """Whether the speech ends with the next patch. stops: whether the stop head says so.

        attention: of each head while the last patch was fed (heads, positions); None before the first one.
        """
        if attention is not None and self._places:
            self._add(attention[:, self._positions].mean(axis=0))
        if len(self._rows) == self._final:
            return True
        if not stops or not self._rows:
            return stops
        last = self._rows[-1]
        arrived = int(last.scores.argmax()) >= self._end
        return arrived or len(self._rows) - last.advanced > _PATIENCE

    def rewind(self, patches: int) -> None:
        """Forget all but the first patches; the attention of the last of them comes again."""
        del self._rows[max(patches - 1, 0) :]
        self._jumps.clear()

    def repair_from(self, patch: int, repairs: int, handed_out: int) -> int | None:
        """The patch from which to speak again, if a jump was noticed before this one; None if none can be repaired.

        If all was said before the jump, the speech ends with that patch or before: a repair would repeat words again.
        repairs: number of repairs so far. handed_out: number of patches that cannot be taken back.
        """
        jump = self._jumps.get(patch)
        if jump is None:
            return None
        fixed = max(handed_out, self._minimum)
        if self._final < 0 and jump >= fixed and min(self.counts(jump), default=0) > 0:
            tail = [at for at, token in enumerate(self._way(jump)) if token == len(self._places) - 1][_TAIL:]
            self._final = max(fixed, min([*tail, jump]))
            return self._final
        if repairs == len(_BACK):
            return None
        again = max(jump - _BACK[repairs], handed_out, 0)
        return again if again < max(jump, 1) else None

    def counts(self, patches: int | None = None) -> list[int]:
        """How many times each character of `said` is said (characters,), by the likeliest way; empty if unknown.

        patches: the number of patches that count. Default: all.
        """
        if not (way := self._way(patches)):
            return []
        counts = np.zeros(len(self._said), int)
        edges = [*self._places, len(self._said)]
        begin = 0 if self._first[way[0]] == 0 else edges[way[0]]
        for before, after in pairwise(way):
            if not 0 <= after - before <= _MAX_TOKENS or self._costs[after, before - after - 1] == -np.inf:
                counts[begin : edges[before + 1]] += 1
                begin = edges[after]
        counts[begin : len(self._said) if way[-1] >= self._end else edges[way[-1] + 1]] += 1
        return counts.tolist()

    def _way(self, patches: int | None) -> list[int]:
        """The token of each of the first patches, by the likeliest way."""
        rows = self._rows[:patches]
        way = [int(row.scores.argmax()) for row in rows[-1:]]
        for row in rows[:0:-1]:
            way.append(int(row.origins[way[-1]]))
        return way[::-1]

    def _add(self, row: npt.NDArray[np.float32]) -> None:
        likely = np.log(row / max(float(row.sum()), 1e-9) + _FLOOR)
        index = len(self._rows)
        if not index:
            jumps = np.where(self._first == 0, -1, 0)
            self._rows.append(_Row(self._first + likely, np.full(len(row), -1), jumps, 0, 0))
            return
        last = self._rows[-1]
        self._before[_MAX_TOKENS:] = last.scores
        ways = self._windows + self._costs
        step = ways.argmax(axis=1)
        scores = ways[self._tokens, step]
        best = int(last.scores.argmax())
        jumps = last.scores[best] - _JUMP > scores
        origins = np.where(jumps, best, self._tokens - _MAX_TOKENS + step)
        scores = np.where(jumps, last.scores[best] - _JUMP, scores) + likely
        at = int(scores.argmax())
        jumped = np.where(jumps, index, last.jumps[origins])
        advanced = index if at > last.reached else last.advanced
        self._rows.append(_Row(scores, origins, jumped, advanced, max(at, last.reached)))
        jump = int(jumped[at])
        if jump > max(self._jumps.values(), default=-1):
            self._jumps[index + 1] = jump


def word_counts(text: str, said: str, counts: Sequence[int]) -> list[int]:
    """How many times each word of the text is said (words,): most of its letters; empty if unknown.

    said: the text as it is said. counts: of its characters (`Follower.counts`).
    """
    found: list[int] = []
    for _, start, end in said_spans(text, said) if counts else ():
        letters = sorted(counts[at] for at in range(start, end) if said[at].isalnum())
        found.append(letters[len(letters) // 2] if letters else 1)
    return found
