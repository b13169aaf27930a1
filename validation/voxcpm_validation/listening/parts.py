"""The parts of a listening test, each of which can be run alone: what is read in which voice, and how it is scored."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from voxcpm_runtime.backends.step_function import Floats
from voxcpm_validation.listening.hearing import HeardSegment, Speak, hear
from voxcpm_validation.listening.material import (
    Material,
    PromptVoice,
    first_words,
    material,
    narration,
    prompt_clip,
    prose,
    short_texts,
)
from voxcpm_validation.listening.narration_scores import NarrationScores, narration_scores
from voxcpm_validation.listening.prose_scores import (
    NaturalSeconds,
    ProseScores,
    median_pace,
    prose_scores,
    prose_segments,
)
from voxcpm_validation.listening.recognition import Recogniser
from voxcpm_validation.listening.scores import Scores, sentence_scores, similarity
from voxcpm_validation.listening.short_text_scores import ShortTextScores, short_text_scores
from voxcpm_validation.listening.speaker_similarity import SpeakerEncoder

# Words of a minute of the narration, at the most: what is planned beyond the end is not spoken.
_WORDS_A_MINUTE = 300


class Report(BaseModel):
    """The scores of a listening test, by its parts."""

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
    voices: int | None = None
    """Number of voices that sentences are continued in, from the first; None for all."""


@dataclass(frozen=True)
class Ears:
    """What listens: a recogniser, a speaker encoder, and the embeddings of the test's voices."""

    recogniser: Recogniser
    encoder: SpeakerEncoder
    voices: Sequence[PromptVoice]
    gallery: Mapping[str, Floats]

    @classmethod
    def of(cls, test: Material, recogniser: Path | None = None) -> Ears:
        """Ears for the voices of a test. recogniser: see `Recogniser`.

        Raises ModuleNotFoundError without the recogniser's packages, MissingExtraError without the encoder's.
        """
        encoder = SpeakerEncoder()
        gallery = {voice.name: encoder.embed(*prompt_clip(voice)) for voice in test.voices}
        return cls(Recogniser(recogniser), encoder, test.voices, gallery)


class Case(NamedTuple):
    """Texts that are read in one voice; text i has the test's seed + i."""

    name: str
    voice: PromptVoice | None
    """None for zero-shot."""
    texts: Mapping[str, str]
    """The texts, by a name for each."""
    seconds: float | None = None
    """Where the reading of each text ends; None for its end."""


class Heard(NamedTuple):
    """What was heard of the texts of a case."""

    system: str
    case: Case
    texts: Mapping[str, Sequence[HeardSegment]]

    @property
    def segments(self) -> list[HeardSegment]:
        """The segments of all texts."""
        return [segment for text in self.texts.values() for segment in text]


class Part(NamedTuple):
    """One part of the test."""

    cases: Callable[[Material, Extent], list[Case]]
    score: Callable[[Heard, Ears, NaturalSeconds | None], Iterator[BaseModel]]


def listen(
    system: str,
    speak: Speak,
    parts: Sequence[str],
    *,
    ears: Ears,
    extent: Extent = Extent(),
    natural: NaturalSeconds | None = None,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> Report:
    """A system's scores in parts of the test, by their names in `PARTS`.

    natural: the seconds that so many letters take in this voice; by default the median over the segments of a case.
    report is called with what is being read. The texts are transcribed while the next ones are spoken.
    """
    test = Material(material(extent.sentences).sentences, ears.voices)
    heard: dict[str, list[tuple[Case, dict[str, Future[list[HeardSegment]]]]]] = {}
    began = time.monotonic()
    with ThreadPoolExecutor(max_workers=1) as listening:
        for part in parts:
            for case in PARTS[part].cases(test, extent):
                futures: dict[str, Future[list[HeardSegment]]] = {}
                for i, (name, text) in enumerate(case.texts.items()):
                    report(
                        f"{system}, {case.name}: {name} ({i + 1} of {len(case.texts)}), "
                        f"{time.monotonic() - began:.0f} s"
                    )
                    reading = speak(text, case.voice, seed + i, case.seconds)
                    futures[name] = listening.submit(hear, reading, ears.recogniser, ears.encoder)
                heard.setdefault(part, []).append((case, futures))
        report(f"{system}: listening to the rest")
    scores: dict[str, tuple[BaseModel, ...]] = {}
    for part, cases in heard.items():
        whole = [Heard(system, case, {n: f.result() for n, f in texts.items()}) for case, texts in cases]
        scores[part] = tuple(score for h in whole for score in PARTS[part].score(h, ears, natural))
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


def _sentence_cases(test: Material, extent: Extent) -> list[Case]:
    texts = {f"sentence {i + 1}": s for i, s in enumerate(test.sentences)}
    return _zero_shot_and_voices(test, texts, extent.voices)


def _prose_cases(test: Material, extent: Extent) -> list[Case]:
    return _zero_shot_and_voices(test, prose(extent.words), 1)


def _short_text_cases(test: Material, _: Extent) -> list[Case]:
    return _zero_shot_and_voices(test, {text: text for text in short_texts()}, 1)


def _narration_cases(_: Material, extent: Extent) -> list[Case]:
    text = first_words(narration(), round(extent.minutes * _WORDS_A_MINUTE))
    return [Case("zero-shot", None, {"narration": text}, 60 * extent.minutes)]


def _sentence_scores(heard: Heard, ears: Ears, _: NaturalSeconds | None) -> Iterator[Scores]:
    case = heard.case
    yield sentence_scores(heard.system, case.name, heard.segments, case.voice, ears.voices, ears.gallery)


def _prose_scores(heard: Heard, ears: Ears, natural: NaturalSeconds | None) -> Iterator[ProseScores]:
    voice = heard.case.voice
    pace = natural or median_pace(heard.segments)
    for kind, segments in (*heard.texts.items(), ("all", heard.segments)):
        likeness = None if voice is None else similarity(segments, ears.gallery[voice.name])
        yield prose_scores(heard.system, heard.case.name, kind, prose_segments(segments, pace), likeness)


def _short_text_scores(heard: Heard, _: Ears, __: NaturalSeconds | None) -> Iterator[ShortTextScores]:
    yield short_text_scores(heard.system, heard.case.name, heard.segments)


def _narration_scores(heard: Heard, _: Ears, __: NaturalSeconds | None) -> Iterator[NarrationScores]:
    yield narration_scores(heard.system, heard.case.name, heard.segments)


PARTS: dict[str, Part] = {
    "sentences": Part(_sentence_cases, _sentence_scores),
    "prose": Part(_prose_cases, _prose_scores),
    "short_texts": Part(_short_text_cases, _short_text_scores),
    "narration": Part(_narration_cases, _narration_scores),
}
"""The parts of the test, by the names of the fields of `Report`."""
