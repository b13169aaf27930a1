"""The parts of a listening test, each of which can be run alone: what is read in which voice, and how it is scored."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from voxcpm_validation.listening.hearing import Case, CaseTranscripts, Listener, Speak, TranscribedSegment
from voxcpm_validation.listening.material import (
    Material,
    first_words,
    material,
    narration,
    prose,
    short_texts,
)
from voxcpm_validation.listening.scores import (
    NarrationScores,
    NaturalSeconds,
    ProseScores,
    Scores,
    ShortTextScores,
    narration_scores,
    prose_scores,
    sentence_scores,
    short_text_scores,
)

# At most this many words of the narration are planned for each minute, as what lies beyond its end is not spoken.
_WORDS_A_MINUTE = 300


class Report(BaseModel):
    """The scores of a listening test, by part."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sentences: tuple[Scores, ...] = ()
    prose: tuple[ProseScores, ...] = ()
    short_texts: tuple[ShortTextScores, ...] = ()
    narration: tuple[NarrationScores, ...] = ()

    def __add__(self, other: Report) -> Report:
        """The scores of both reports."""
        return Report(**{name: getattr(self, name) + getattr(other, name) for name in Report.model_fields})


@dataclass(frozen=True)
class Extent:
    """How much of the material is read."""

    sentences: int | None = None
    """Number of sentences, from the first; None for all."""
    words: int | None = None
    """Words of each kind of prose; None for all."""
    minutes: float = 30.0
    """Minutes of the narration."""


class Part(NamedTuple):
    """One part of the test."""

    cases: Callable[[Material, Extent], list[Case]]
    score: Callable[[CaseTranscripts, Listener, NaturalSeconds | None], Iterable[BaseModel]]


def listen(
    system: str,
    speak: Speak,
    parts: Sequence[str],
    *,
    listener: Listener,
    extent: Extent = Extent(),
    natural: NaturalSeconds | None = None,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> Report:
    """A system's scores in parts of the test, by their names in `PARTS`.

    natural: the natural duration of letters in this voice; by default the median over the segments of a case.
    report is called with what is being read. The texts are transcribed while the next ones are spoken.
    """
    test = Material(material(extent.sentences).sentences, listener.voices)
    read: list[tuple[str, Case, dict[str, Future[list[TranscribedSegment]]]]] = []
    start = time.monotonic()
    with ThreadPoolExecutor(max_workers=1) as listening:
        for part in parts:
            for case in PARTS[part].cases(test, extent):
                futures = {}
                for i, (name, text) in enumerate(case.texts.items()):
                    place = f"{name} ({i + 1} of {len(case.texts)})"
                    report(f"{system}, {case.name}: {place}, {time.monotonic() - start:.0f} s")
                    reading = speak(text, case.voice, seed + i, case.seconds)
                    futures[name] = listening.submit(listener.hear, reading)
                read.append((part, case, futures))
        report(f"{system}: listening to the rest")
    scores: dict[str, tuple[BaseModel, ...]] = dict.fromkeys(parts, ())
    for part, case, futures in read:
        heard = CaseTranscripts(system, case, {name: future.result() for name, future in futures.items()})
        scores[part] += tuple(PARTS[part].score(heard, listener, natural))
    return Report.model_validate(scores)


def _zero_shot_and_voices(test: Material, texts: Mapping[str, str], count: int | None = None) -> list[Case]:
    continued = [voice for voice in test.voices if voice.continued][:count]
    return [
        Case("zero-shot", None, texts),
        *(
            Case(f"continuation, {voice.name}{' (unheard)' if voice.unheard else ''}", voice, texts)
            for voice in continued
        ),
    ]


def _sentence_cases(test: Material, _: Extent) -> list[Case]:
    return _zero_shot_and_voices(test, {f"sentence {i + 1}": s for i, s in enumerate(test.sentences)})


def _prose_cases(test: Material, extent: Extent) -> list[Case]:
    return _zero_shot_and_voices(test, prose(extent.words), 1)


def _short_text_cases(test: Material, _: Extent) -> list[Case]:
    return _zero_shot_and_voices(test, {text: text for text in short_texts()}, 1)


def _narration_cases(_: Material, extent: Extent) -> list[Case]:
    text = first_words(narration(), round(extent.minutes * _WORDS_A_MINUTE))
    return [Case("zero-shot", None, {"narration": text}, 60 * extent.minutes)]


PARTS: dict[str, Part] = {
    "sentences": Part(_sentence_cases, sentence_scores),
    "prose": Part(_prose_cases, prose_scores),
    "short_texts": Part(_short_text_cases, short_text_scores),
    "narration": Part(_narration_cases, narration_scores),
}
"""The parts of the test, by the names of the fields of `Report`."""
