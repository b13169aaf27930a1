"""The parts of the listening test: texts, voices, scoring, and tables of scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from rich import box
from rich.table import Table

from voxcpm_constants.errors import InputError, first_line
from voxcpm_validation.listening import material, scores
from voxcpm_validation.listening.copies import CopyScores
from voxcpm_validation.listening.hearing import (
    Listener,
    ReadingCase,
    Speak,
    TranscribedCase,
    TranscribedSegment,
)
from voxcpm_validation.listening.material import PromptVoice

# Upper bound of the pace: words beyond the narration's end are planned but not spoken.
_WORDS_A_MINUTE = 300


class Report(BaseModel, extra="forbid", frozen=True):
    """The scores of a listening test, by part."""

    sentences: tuple[scores.SentenceScores, ...] = ()
    prose: tuple[scores.ProseScores, ...] = ()
    short_texts: tuple[scores.ShortTextScores, ...] = ()
    narration: tuple[scores.NarrationScores, ...] = ()
    chinese: tuple[scores.ChineseScores, ...] = ()
    copies: tuple[CopyScores, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Report:
        """A saved report. Raises InputError for a file that is none of this release."""
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValidationError) as error:
            reason = first_line(error)
            raise InputError(f"{path}: expected a listening.json of this release ({reason})") from None

    def __add__(self, other: Report) -> Report:
        """The scores of both reports."""
        return Report(**{name: getattr(self, name) + getattr(other, name) for name in Report.model_fields})


@dataclass(frozen=True)
class Extent:
    """How much of the material to read."""

    sentences: int | None = None
    """Number of sentences, from the first; None for all."""
    words: int | None = None
    """Words of each kind of prose; None for all."""
    minutes: float = 30.0
    """Minutes of the narration."""


class ListeningPart(NamedTuple):
    """One part of the test."""

    texts: Callable[[Extent], Mapping[str, str]]
    voices: int | None
    """Number of prompts to continue; None for all."""
    score: Callable[[TranscribedCase, Listener, scores.NaturalSeconds | None], Iterable[BaseModel]]
    language: str = "en"


def _numbered(sentences: Iterable[str]) -> dict[str, str]:
    return {f"sentence {number}": sentence for number, sentence in enumerate(sentences, 1)}


PARTS: dict[str, ListeningPart] = {
    "sentences": ListeningPart(
        lambda e: _numbered(material.short_sentences(e.sentences)), None, scores.sentence_scores
    ),
    "prose": ListeningPart(lambda e: material.prose(e.words), 1, scores.prose_scores),
    "short_texts": ListeningPart(
        lambda _: {text: text for text in material.short_texts()}, 1, scores.short_text_scores
    ),
    "narration": ListeningPart(
        lambda e: {"narration": material.narration(round(e.minutes * _WORDS_A_MINUTE))},
        0,
        scores.narration_scores,
    ),
    "chinese": ListeningPart(
        lambda e: _numbered(material.chinese_sentences(e.sentences)), 0, scores.chinese_scores, "zh"
    ),
}
"""The parts of the test, by the names of the fields of `Report`."""


def cases(part: str, extent: Extent, voices: Sequence[PromptVoice]) -> list[ReadingCase]:
    """The cases of a part: its texts zero-shot, and as continuations."""
    texts = PARTS[part].texts(extent)
    continued = [voice for voice in voices if voice.continued][: PARTS[part].voices]
    seconds = 60 * extent.minutes if part == "narration" else None
    names = [f"continuation, {voice.name}{' (unheard)' if voice.unheard else ''}" for voice in continued]
    return [
        ReadingCase(name, voice, texts, seconds, PARTS[part].language)
        for name, voice in (("zero-shot", None), *zip(names, continued, strict=True))
    ]


def listen(
    system: str,
    speak: Speak,
    parts: Sequence[str],
    *,
    listener: Listener,
    extent: Extent = Extent(),
    natural: scores.NaturalSeconds | None = None,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> Report:
    """A system's scores in parts of the test, by their names in `PARTS`.

    natural: natural duration of letters in this voice. Default: the median over the segments of a case.
    report: called with what is being read. Texts are transcribed while the next ones are spoken.
    """
    read: list[tuple[str, ReadingCase, dict[str, Future[list[TranscribedSegment]]]]] = []
    start = time.monotonic()
    with ThreadPoolExecutor(max_workers=1) as listening:
        for part, case in ((p, case) for p in parts for case in cases(p, extent, listener.voices)):
            futures = {}
            for i, (name, text) in enumerate(case.texts.items()):
                place = f"{name} ({i + 1} of {len(case.texts)})"
                report(f"{system}, {case.name}: {place}, {time.monotonic() - start:.0f} s")
                reading = speak(text, case.voice, seed + i, case.seconds)
                futures[name] = listening.submit(listener.transcribe, reading, case.language)
            read.append((part, case, futures))
        report(f"{system}: listening to the rest")
    found: dict[str, tuple[BaseModel, ...]] = dict.fromkeys(parts, ())
    for part, case, futures in read:
        heard = TranscribedCase(system, case, {name: future.result() for name, future in futures.items()})
        found[part] += tuple(PARTS[part].score(heard, listener, natural))
    return Report.model_validate(found)


def tables(report: Report) -> Iterator[Table]:
    """A table per part and system, and one per narration with its minutes."""
    for part in Report.model_fields:
        rows = getattr(report, part)
        for system in dict.fromkeys(row.system for row in rows):
            title = f"{part.replace('_', ' ')}, {system}"
            yield _table(title, [row for row in rows if row.system == system])
    for read in report.narration:
        yield _table(f"minute by minute, {read.system}", read.minutes)


def _table(title: str, rows: Sequence[Any]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    columns = {name: field for name, field in type(rows[0]).model_fields.items() if field.title}
    for name, field in columns.items():
        table.add_column(field.title, no_wrap=name == "case")
    for row in rows:
        values = [(getattr(row, name), field.json_schema_extra["form"]) for name, field in columns.items()]
        table.add_row(*("" if value is None else form.format(value) for value, form in values))
    return table
