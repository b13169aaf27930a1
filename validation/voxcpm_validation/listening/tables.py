"""The tables of a listening test: one declaration of columns for each part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rich.table import Table

from voxcpm_validation.listening.parts import Report


class Column(NamedTuple):
    """A column: its heading, and the field that it shows."""

    heading: str
    field: str
    shown: Callable[[Any], str] = str


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _share(value: float) -> str:
    return f"{value:.0%}"


def _two(value: float) -> str:
    return f"{value:.2f}"


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _db(value: float) -> str:
    return f"{value:.1f} dB"


def _pairs(value: tuple[tuple[str, str], ...]) -> str:
    return "; ".join(f"{said} → {heard}" for said, heard in value)


_WHO = (Column("system", "system"), Column("case", "case"))
COLUMNS: dict[str, tuple[Column, ...]] = {
    "sentences": (
        *_WHO,
        Column("WER", "word_error_rate", _percent),
        Column("length", "length_ratio", _two),
        Column("within 15 %", "within_natural", _share),
        Column("longest", "longest_ratio", _two),
        Column("cut ends", "cut_ends"),
        Column("tried again", "tried_again"),
        Column("likeness", "similarity", _two),
        Column("others'", "other_similarity", _two),
        Column("right voice", "right_voice", _share),
    ),
    "prose": (
        *_WHO,
        Column("text", "kind"),
        Column("words", "words"),
        Column("WER", "word_error_rate", _percent),
        Column("as written", "written_word_error_rate", _percent),
        Column("length", "length_ratio", _two),
        Column("longest", "longest_ratio", _two),
        Column("> 1.4", "long"),
        Column("untried", "long_untried"),
        Column("cut", "cut"),
        Column("repeated", "repeated"),
        Column("tried again", "tried_again"),
        Column("reported", "suspicious"),
        Column("words/min", "words_per_minute", _whole),
        Column("likeness", "similarity", _two),
    ),
    "short_texts": (
        *_WHO,
        Column("texts", "texts"),
        Column("understood", "understood"),
        Column("tried again", "tried_again"),
        Column("longest, s", "longest_seconds", _two),
        Column("misunderstood", "misunderstood", _pairs),
    ),
    "narration": (
        *_WHO,
        Column("minutes", "minutes", lambda minutes: str(len(minutes))),
        Column("words", "words"),
        Column("WER", "word_error_rate", _percent),
        Column("pace drift", "pace_drift", _percent),
        Column("pace spread", "pace_spread", _percent),
        Column("level drift", "level_drift", _db),
        Column("level spread", "level_spread", _db),
        Column("least likeness", "least_similarity", _two),
        Column("tried again", "tried_again"),
        Column("reported", "suspicious"),
    ),
    "minutes": (
        Column("minute", "minute"),
        Column("WER", "word_error_rate", _percent),
        Column("words/min", "words_per_minute", _whole),
        Column("level", "level", _db),
        Column("likeness", "similarity", _two),
    ),
}
"""The columns of each field of `Report`, and of the minutes of a narration."""


def tables(report: Report) -> Iterator[Table]:
    """A table of each part that was measured, and one of the minutes of each narration."""
    for part in Report.model_fields:
        if rows := getattr(report, part):
            yield _table(part, part.replace("_", " "), rows)
    for score in report.narration:
        yield _table("minutes", f"{score.system}, minute by minute", score.minutes)


def _table(columns: str, title: str, rows: tuple[Any, ...]) -> Table:
    table = Table(*(column.heading for column in COLUMNS[columns]), title=title, title_justify="left")
    for row in rows:
        values = ((column, getattr(row, column.field)) for column in COLUMNS[columns])
        table.add_row(*("" if value is None else column.shown(value) for column, value in values))
    return table
