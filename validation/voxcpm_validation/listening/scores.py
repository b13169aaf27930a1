"""Scores of each part of the listening test: sentences, prose, short texts and a narration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from voxcpm_validation.listening.hearing import Listener, TranscribedCase, TranscribedSegment
from voxcpm_validation.listening.material import PromptVoice
from voxcpm_validation.listening.recognition import (
    character_error_rate,
    is_repeated,
    longest_lost_run,
    sounds_alike,
    word_errors,
)

LONG, SHORT = 1.4, 0.6
"""A segment is suspicious if the ratio of its length to its natural length is not between these."""
LOST_WORDS = 3
"""A segment counts as cut if this many consecutive words are missing."""
_NATURAL = 0.15
_RUNAWAY = 2.0
_MIN_SECONDS = 30.0

NaturalSeconds = Callable[[int], float]
"""The natural duration, in seconds, of a given number of letters."""


def column(heading: str, form: str = "{}", **field: Any) -> Any:
    """A field that `tables` shows with this heading."""
    return Field(title=heading, json_schema_extra={"form": form}, **field)


class _Record(BaseModel, extra="forbid", frozen=True):
    """Immutable, without other fields."""


class CaseScores(_Record):
    """Fields common to the scores of all parts."""

    system: str
    case: str = column("case")


def _common(heard: TranscribedCase, segments: Sequence[TranscribedSegment]) -> dict[str, Any]:
    """The fields that the scores of all parts of the test have, over some segments of a case."""
    tried_again = sum(segment.attempts > 1 for segment in segments)
    return {"system": heard.system, "case": heard.case.name, "tried_again": tried_again}


class SoundScores(CaseScores):
    """How a case sounds: means over its segments, and the median of their pitch."""

    mos: float = column("MOS", "{:.2f}")
    """Mean opinion score that DistillMOS predicts, 1 to 5."""
    dnsmos: float = column("DNSMOS", "{:.2f}")
    """Overall quality that DNSMOS predicts, 1 to 5."""
    pitch: float | None = column("F0, Hz", "{:.0f}", default=None)
    comb: float = column("comb", "{:.0%}")
    """Share of power near multiples of 50 Hz; 24 % by chance."""
    flatness: float = column("flatness", "{:.2f}", default=0.0)
    """Spectral flatness of noisy frames: low if sibilants are metallic."""
    sibilance: float = column("4-8 kHz, dB", "{:.1f}", default=0.0)
    """Power from 4 to 8 kHz over all of it."""


def sound(segments: Sequence[TranscribedSegment]) -> dict[str, Any]:
    """The fields of `SoundScores`."""
    pitches = [s.pitch for s in segments if s.pitch is not None]
    averaged = ("mos", "dnsmos", "comb", "flatness", "sibilance")
    means = {name: float(np.mean([getattr(s, name) for s in segments])) for name in averaged}
    return {**means, "pitch": float(np.median(pitches)) if pitches else None}


class SentenceScores(SoundScores):
    """Scores over all short sentences, zero-shot or as a continuation of one prompt."""

    sentences: int
    word_error_rate: float = column("WER", "{:.1%}")
    length_ratio: float | None = column("length", "{:.2f}", default=None)
    """Ratio of total length to natural length; for zero-shot speech, to the mean of the continued voices'.

    None if the speaker's own lengths are unknown, like the next three figures.
    """
    within_natural: float | None = column("within 15 %", "{:.0%}", default=None)
    """Share of sentences whose length is within 15 % of natural."""
    longest_ratio: float | None = column("longest", "{:.2f}", default=None)
    """Largest ratio of a sentence's length to its natural length."""
    runaways: int | None = None
    """Number of sentences more than twice as long as natural."""
    cut_ends: int = column("cut ends")
    tried_again: int = column("retried")
    similarity: float | None = column("similarity", "{:.2f}", default=None)
    """Mean cosine similarity to the prompt's voice."""
    other_similarity: float | None = column("others'", "{:.2f}", default=None)
    """Mean cosine similarity to the most similar of the other voices."""
    right_voice: float | None = column("right voice", "{:.0%}", default=None)
    """Share of sentences that are more similar to the prompt than to any other voice."""
    heard: tuple[TranscribedSegment, ...]


def sentence_scores(heard: TranscribedCase, listener: Listener, _: object = None) -> Iterator[SentenceScores]:
    """The scores of a case of short sentences."""
    segments, voice = heard.segments, heard.case.voice
    compared = [voice] if voice else [v for v in listener.voices if v.continued and v.natural_seconds]
    figures: dict[str, Any] = {}
    if all(v.natural_seconds for v in compared):
        natural = np.mean([v.natural_seconds[: len(segments)] for v in compared], axis=0)
        seconds = np.array([segment.seconds for segment in segments])
        ratios = seconds / natural
        figures = {
            "length_ratio": float(seconds.sum() / natural.sum()),
            "within_natural": float(np.mean(np.abs(ratios - 1) <= _NATURAL)),
            "longest_ratio": float(ratios.max()),
            "runaways": int(np.sum(ratios > _RUNAWAY)),
        }
    if voice:
        figures |= _similarities(voice, segments, listener)
    yield SentenceScores(
        **_common(heard, segments),
        sentences=len(segments),
        word_error_rate=_error_rate(segments, written=True),
        cut_ends=sum(segment.ends_abruptly for segment in segments),
        heard=tuple(segments),
        **figures,
        **sound(segments),
    )


def _similarities(
    voice: PromptVoice, segments: Sequence[TranscribedSegment], listener: Listener
) -> dict[str, float]:
    clones = np.array([segment.embedding for segment in segments])
    own = clones @ listener.gallery[voice.name]
    others = np.max([clones @ e for name, e in listener.gallery.items() if name != voice.name], axis=0)
    return {
        "similarity": float(own.mean()),
        "other_similarity": float(others.mean()),
        "right_voice": float(np.mean(own > others)),
    }


class ChineseScores(SoundScores):
    """Scores over all Chinese sentences."""

    sentences: int = column("sentences")
    character_error_rate: float = column("CER", "{:.1%}")
    cut_ends: int = column("cut ends")
    tried_again: int = column("retried")
    heard: tuple[TranscribedSegment, ...]


def chinese_scores(heard: TranscribedCase, *_: object) -> Iterator[ChineseScores]:
    """The scores of a case of Chinese sentences."""
    segments = heard.segments
    yield ChineseScores(
        **_common(heard, segments),
        sentences=len(heard.texts),
        character_error_rate=character_error_rate([s.written for s in segments], [s.heard for s in segments]),
        cut_ends=sum(segment.ends_abruptly for segment in segments),
        heard=tuple(segments),
        **sound(segments),
    )


class ProseSegment(_Record):
    """A segment with its text-dependent figures."""

    heard: TranscribedSegment
    length_ratio: float
    """Ratio of length to natural length."""
    lost: int
    """Longest run of missing words."""
    repeated: bool


class ProseScores(SoundScores):
    """Scores over one kind of prose, or over all."""

    kind: str = column("text")
    words: int = column("words")
    word_error_rate: float = column("WER", "{:.1%}")
    """Errors relative to the words that the voice got, with numbers spelled out."""
    written_word_error_rate: float = column("written", "{:.1%}")
    """Errors relative to the text as written."""
    length_ratio: float = column("length", "{:.2f}")
    longest_ratio: float = column("longest", "{:.2f}")
    long: int = column("> 1.4")
    """Number of segments longer than 1.4 times natural, after all attempts."""
    long_untried: int = column("not retried")
    """Those of them that were not retried."""
    cut: int = column("cut")
    """Number of segments shorter than 0.6 times natural, or with three consecutive words missing."""
    repeated: int = column("repeated")
    """Number of segments with three consecutive words heard more often than they occur."""
    tried_again: int = column("retried")
    suspicious: int = column("reported")
    """Number of segments whose last attempt the runtime reports as bad."""
    words_per_minute: float = column("w/min", "{:.0f}")
    similarity: float | None = column("similarity", "{:.2f}", default=None)
    """Mean cosine similarity to the prompt's voice."""
    segments: tuple[ProseSegment, ...]


def prose_scores(
    heard: TranscribedCase, listener: Listener, natural: NaturalSeconds | None = None
) -> Iterator[ProseScores]:
    """The scores of each text of a case of prose, then of all its texts.

    natural: Default: the median seconds per letter in the case.
    """
    natural = natural or _median_pace(heard.segments)
    own = listener.gallery[heard.case.voice.name] if heard.case.voice else None
    for kind, segments in (*heard.texts.items(), ("all", heard.segments)):
        examined = [
            ProseSegment(
                heard=segment,
                length_ratio=segment.seconds / natural(segment.letters),
                lost=longest_lost_run(segment.said, segment.heard),
                repeated=is_repeated(segment.said, segment.heard),
            )
            for segment in segments
        ]
        long = [segment for segment in examined if segment.length_ratio > LONG]
        yield ProseScores(
            **_common(heard, segments),
            kind=kind,
            words=sum(s.words for s in segments),
            word_error_rate=_error_rate(segments),
            written_word_error_rate=_error_rate(segments, written=True),
            length_ratio=sum(s.seconds for s in segments) / sum(natural(s.letters) for s in segments),
            longest_ratio=max(segment.length_ratio for segment in examined),
            long=len(long),
            long_untried=sum(segment.heard.attempts == 1 for segment in long),
            cut=sum(s.length_ratio < SHORT or s.lost >= LOST_WORDS for s in examined),
            repeated=sum(segment.repeated for segment in examined),
            suspicious=sum(s.suspicious for s in segments),
            words_per_minute=_words_per_minute(segments),
            similarity=None if own is None else float(np.mean([np.dot(s.embedding, own) for s in segments])),
            segments=tuple(examined),
            **sound(segments),
        )


def _median_pace(segments: Sequence[TranscribedSegment]) -> NaturalSeconds:
    pace = float(np.median([segment.seconds / max(segment.letters, 1) for segment in segments]))
    return lambda letters: pace * max(letters, 1)


class ShortTextScores(CaseScores):
    """Scores over texts of one or two words."""

    texts: int = column("texts")
    understood: int = column("understood")
    """Number of texts whose transcript sounds the same."""
    misunderstood: tuple[tuple[str, str], ...]
    """The other texts, with their transcripts."""
    tried_again: int = column("retried")
    longest_seconds: float = column("longest, s", "{:.2f}")


def short_text_scores(heard: TranscribedCase, *_: object) -> Iterator[ShortTextScores]:
    """The scores of a case of short texts, each of which is one segment."""
    segments = heard.segments
    wrong = [(s.written, s.heard) for s in segments if not sounds_alike(s.written, s.heard)]
    yield ShortTextScores(
        **_common(heard, segments),
        texts=len(segments),
        understood=len(segments) - len(wrong),
        misunderstood=tuple(wrong),
        longest_seconds=max(s.seconds for s in segments),
    )


class Minute(_Record):
    """One minute of a narration: the segments whose midpoint is in it."""

    minute: int = column("minute")
    word_error_rate: float = column("WER", "{:.1%}")
    words_per_minute: float = column("w/min", "{:.0f}")
    """Words per minute, including pauses."""
    level: float = column("level", "{:.1f} dB")
    """Level of the speech without its pauses, in dB relative to full scale."""
    similarity: float = column("likeness", "{:.2f}")
    """Cosine similarity of the voice to that of the first minute."""


class NarrationScores(CaseScores):
    """Scores over a long narration.

    A drift is the end-to-end change of a linear fit over the minutes, a spread the largest deviation of a minute from
    the mean. Those of the pace are relative to the mean words per minute, those of the level are in dB.
    """

    words: int = column("words")
    word_error_rate: float = column("WER", "{:.1%}")
    pace_drift: float = column("pace drift", "{:.1%}")
    pace_spread: float = column("pace spread", "{:.1%}")
    level_drift: float = column("level drift", "{:.1f} dB")
    level_spread: float = column("level spread", "{:.1f} dB")
    min_similarity: float = column("min similarity", "{:.2f}")
    """Minimum similarity of a minute's voice to that of the first."""
    tried_again: int = column("retried")
    suspicious: int = column("reported")
    minutes: tuple[Minute, ...]
    segments: tuple[TranscribedSegment, ...]


def narration_scores(heard: TranscribedCase, *_: object) -> Iterator[NarrationScores]:
    """The scores of a narration. A last minute of less than 30 s is not a row of its own."""
    segments = heard.segments
    by_minute = _by_minute(segments)
    first = _voice(next(iter(by_minute.values())))
    minutes = tuple(
        Minute(
            minute=number + 1,
            word_error_rate=_error_rate(own),
            words_per_minute=_words_per_minute(own),
            level=_level(own),
            similarity=float(_voice(own) @ first),
        )
        for number, own in by_minute.items()
    )
    pace = np.array([minute.words_per_minute for minute in minutes])
    level = np.array([minute.level for minute in minutes])
    yield NarrationScores(
        **_common(heard, segments),
        words=sum(s.words for s in segments),
        word_error_rate=_error_rate(segments),
        pace_drift=_drift(pace) / float(pace.mean()),
        pace_spread=float(np.abs(pace / pace.mean() - 1).max()),
        level_drift=_drift(level),
        level_spread=float(np.abs(level - level.mean()).max()),
        min_similarity=min(minute.similarity for minute in minutes),
        suspicious=sum(s.suspicious for s in segments),
        minutes=minutes,
        segments=tuple(segments),
    )


def _by_minute(segments: Sequence[TranscribedSegment]) -> dict[int, list[TranscribedSegment]]:
    minutes: dict[int, list[TranscribedSegment]] = defaultdict(list)
    start = 0.0
    for segment in segments:
        minutes[int((start + segment.seconds / 2) // 60)].append(segment)
        start += segment.seconds + segment.pause
    last = max(minutes)
    if len(minutes) > 1 and _seconds(minutes[last]) < _MIN_SECONDS:
        minutes.pop(last)
    return dict(minutes)


def _voice(segments: Sequence[TranscribedSegment]) -> np.ndarray:
    mean = np.sum([np.array(s.embedding) * s.seconds for s in segments], axis=0)
    return np.asarray(mean / np.linalg.norm(mean))


def _level(segments: Sequence[TranscribedSegment]) -> float:
    powers = [10 ** (s.level / 10) for s in segments]
    return float(10 * np.log10(np.average(powers, weights=[s.seconds for s in segments])))


def _drift(values: np.ndarray) -> float:
    if len(values) < 2:
        return 0.0
    return float(np.polyfit(np.arange(len(values)), values, 1)[0] * (len(values) - 1))


def _error_rate(segments: Sequence[TranscribedSegment], *, written: bool = False) -> float:
    return word_errors([s.written if written else s.said for s in segments], [s.heard for s in segments]).rate


def _words_per_minute(segments: Sequence[TranscribedSegment]) -> float:
    return 60 * sum(s.words for s in segments) / _seconds(segments)


def _seconds(segments: Sequence[TranscribedSegment]) -> float:
    return sum(s.seconds + s.pause for s in segments)
