"""Where the letters of a text are in its speech, from punctuation and pauses alone: for every bundle.

Pauses are matched to marks, or at some cost to the spaces between words, by dynamic programming: the letters between
two pauses must take about as long as the others. Between pauses letters are spread by their usual durations.
"""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.text.segments import WIDE

Doubles = npt.NDArray[np.float64]

_FRAME = 0.01  # Seconds of a frame whose energy is measured
_QUIET = 32.0  # Decibels below the loud frames, from which a frame is silent
_MIN_SILENCE = 5  # Frames
_MAX_SILENCES = 40  # The longest ones, which bounds the work
_STOPS, _COMMAS = ".!?…。！？", ",;:—–，、；："
# Costs of a pause at a place, and of none: after a stop, after a comma, between words.
_STOP, _COMMA, _SPACE = (0.0, 4.0), (0.0, 1.5), (3.5, 0.0)
# Cost of a second of silence that is not a pause; plosives such as p and t have up to 130 ms.
_UNMATCHED, _CLOSURE = 25.0, 0.13
# Variance of a duration: constant (s²), and for each expected second.
_VARIANCE, _VARIANCE_PER_SECOND = 0.003, 0.0095
# Relative durations, fitted to 64 recordings of English; 1 of another letter, such as l, m, n and r.
_DURATIONS = {**dict.fromkeys("aeiouy", 1.15), **dict.fromkeys("bcdfghjkpqstvxz", 0.8)}
_WIDE_LETTER = 3.0
_WORD_START, _BEFORE_PAUSE = 0.85, 2.8  # In addition
_UNSTRESSED, _FINAL_E = 0.5, 0.5  # Factors: of a word's letters, of a silent e
_UNSTRESSED_WORD = re.compile(
    "a|am|an|and|are|as|at|be|been|but|by|can|could|did|do|for|from|had|has|have|he|her|his|i|if|in|into|is|it|its|my|"
    "no|not|of|on|or|our|out|she|should|so|than|that|the|their|them|then|there|they|this|to|up|was|we|were|which|who|"
    "will|with|would|you|your"
)
_WORD = re.compile(rf"[{WIDE}]|(?:(?![{WIDE}])[^\W_])+(?:'[^\W_]+)*")


def letter_times(said: str, audio: Audio, sample_rate: int) -> Doubles:
    """The seconds at which each character begins, and the last one ends (characters + 1,).

    A pause belongs to the marks and spaces at which it is made. said: the text as it is said. audio: its speech
    (samples,) in [-1, 1], from beginning to end.
    """
    quiet = silences(audio, sample_rate)
    # The silence before the speech ends where it begins, the one after it begins where it ends.
    begins, ends = quiet[:, 0], quiet[:, 1]
    position = np.concatenate([[0.0], np.cumsum(_durations(said))])
    starts = [word.start() for word in _WORD.finditer(said)]
    if not starts:
        return np.linspace(ends[0], begins[-1], len(said) + 1)
    starts = [0, *starts[1:], len(said)]
    costs = np.array([(0.0, 0.0), *(_cost(said[:at].rstrip()[-1:]) for at in starts[1:-1]), (0.0, 0.0)])
    lengths = ends - begins
    # At first every long silence counts as a pause.
    paused = lengths[1:-1][lengths[1:-1] > _CLOSURE].sum()
    pairs = [(0, 0)]
    for _ in range(2):
        pace = max(begins[-1] - ends[0] - paused, _FRAME) / position[-1]
        pairs = _matched(begins, ends, position[starts] * pace, costs)
        paused = sum(lengths[silence] for silence, _ in pairs[1:-1])
    times = np.full(len(said) + 1, begins[-1])
    for (silence, place), (following, end) in pairwise(pairs):
        part = slice(starts[place], starts[end])
        span = [position[part.start], position[part.stop]]
        times[part] = np.interp(position[part], span, [ends[silence], begins[following]])
    return times


def silences(audio: Audio, sample_rate: int) -> Doubles:
    """Begin and end of each silence in seconds (silences, 2), with those before and after the speech."""
    size = round(sample_rate * _FRAME)
    frames = audio[: len(audio) // size * size].reshape(-1, size).astype(np.float64)
    energy = (frames**2).mean(1) if len(frames) else np.zeros(1)
    power = np.convolve(energy, [0.25, 0.5, 0.25], "same")[: len(energy)]
    silent = np.concatenate([[True], power <= np.percentile(power, 95) * 10 ** (-_QUIET / 10), [True]])
    if silent.all():
        return np.array([[0.0, 0.0], [len(audio) / sample_rate] * 2])
    edges = np.flatnonzero(np.diff(silent.astype(int)))
    begins, ends = np.concatenate([[0], edges[1::2]]), np.concatenate([edges[::2], [len(power)]])
    length = (ends - begins)[1:-1]
    longest = 1 + np.sort(np.argsort(-length, kind="stable")[:_MAX_SILENCES])
    kept = [0, *longest[(ends - begins)[longest] >= _MIN_SILENCE], len(begins) - 1]
    return np.stack([begins, ends], 1)[kept] * _FRAME


def _durations(said: str) -> Doubles:
    """Relative durations of the characters (characters,)."""
    letters = [char.lower() if char.isalnum() else "" for char in said]
    durations = np.array([_DURATIONS.get(letter, 1.0) if letter else 0.0 for letter in letters])
    for match in _WORD.finditer(said):
        word, start, end = match[0].lower(), *match.span()
        if re.match(f"[{WIDE}]", word):
            durations[start] = _WIDE_LETTER
            continue
        if re.search(r"..[^aeiouy]e$", word):
            durations[end - 1] *= _FINAL_E
        if _UNSTRESSED_WORD.fullmatch(word):
            durations[start:end] *= _UNSTRESSED
        durations[start] += _WORD_START
    for last in re.finditer(r"[^\W_](?=[^\w\s'-]|\s*$)", said):
        durations[last.start()] += _BEFORE_PAUSE
    return durations


def _cost(mark: str) -> tuple[float, float]:
    return _STOP if mark in _STOPS else _COMMA if mark in _COMMAS else _SPACE


def _matched(begins: Doubles, ends: Doubles, places: Doubles, costs: Doubles) -> list[tuple[int, int]]:
    """The best pairs of silence and place in order, from the first of both to the last of both.

    begins, ends: of silences, in seconds (silences,). places: where a pause may be, in seconds of speech without pauses
    (places,). costs: of a pause at a place, and of none (places, 2).
    """
    count = len(places)
    expected = places - places[:, None]
    spread = 2 * (_VARIANCE + _VARIANCE_PER_SECOND * np.maximum(expected, 0))
    missed = np.cumsum(costs[:, 1])
    passed = np.where(expected > 0, missed - costs[:, 1] - missed[:, None], np.inf)
    unmatched = np.cumsum(_UNMATCHED * np.maximum(ends - begins - _CLOSURE, 0))
    total = np.full((len(begins), count), np.inf)
    total[0, 0] = 0.0
    origin = np.zeros((len(begins), count), int)
    for at in range(1, len(begins)):
        spoken = begins[at] - ends[:at, None, None]
        cost = total[:at, :, None] + (spoken - expected) ** 2 / spread + passed
        cost += (unmatched[at - 1] - unmatched[:at])[:, None, None]
        cost = cost.reshape(-1, count)
        origin[at] = cost.argmin(0)
        total[at] = cost[origin[at], range(count)] + costs[:, 0]
        total[at, -1] = np.inf
    pairs = [(len(begins) - 1, count - 1)]
    while pairs[-1][0]:
        pairs.append((int(origin[pairs[-1]]) // count, int(origin[pairs[-1]]) % count))
    return pairs[::-1]
