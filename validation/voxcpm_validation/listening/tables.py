"""The tables of a listening test: one declaration of columns for each part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from voxcpm_validation.listening.parts import Report


class Column(NamedTuple):
    """A column: its heading, and the field that it shows."""

    heading: str
    field: str
    shown: Callable[[Any], str] = str


_percent, _share, _two, _whole, _db = (
    "{:.1%}".format,
    "{:.0%}".format,
    "{:.2f}".format,
    "{:.0f}".format,
    "{:.1f} dB".format,
)
_CASE = Column("case", "case")
COLUMNS: dict[str, tuple[Column, ...]] = {
    "sentences": (
        _CASE,
        Column("WER", "word_error_rate", _percent),
        Column("length", "length_ratio", _two),
        Column("within 15 %", "within_natural", _share),
        Column("longest", "longest_ratio", _two),
        Column("cut ends", "cut_ends"),
        Column("again", "tried_again"),
        Column("likeness", "similarity", _two),
        Column("others'", "other_similarity", _two),
        Column("right voice", "right_voice", _share),
    ),
    "prose": (
        _CASE,
        Column("text", "kind"),
        Column("words", "words"),
        Column("WER", "word_error_rate", _percent),
        Column("written", "written_word_error_rate", _percent),
        Column("length", "length_ratio", _two),
        Column("longest", "longest_ratio", _two),
        Column("> 1.4", "long"),
        Column("untried", "long_untried"),
        Column("cut", "cut"),
        Column("repeated", "repeated"),
        Column("again", "tried_again"),
        Column("reported", "suspicious"),
        Column("w/min", "words_per_minute", _whole),
        Column("likeness", "similarity", _two),
    ),
    "short_texts": (
        _CASE,
        Column("texts", "texts"),
        Column("understood", "understood"),
        Column("again", "tried_again"),
        Column("longest, s", "longest_seconds", _two),
    ),
    "narration": (
        _CASE,
        Column("minutes", "minutes", lambda minutes: str(len(minutes))),
        Column("words", "words"),
        Column("WER", "word_error_rate", _percent),
        Column("pace drift", "pace_drift", _percent),
        Column("pace spread", "pace_spread", _percent),
        Column("level drift", "level_drift", _db),
        Column("level spread", "level_spread", _db),
        Column("least likeness", "min_similarity", _two),
        Column("again", "tried_again"),
        Column("reported", "suspicious"),
    ),
    "minutes": (
        Column("minute", "minute"),
        Column("WER", "word_error_rate", _percent),
        Column("w/min", "words_per_minute", _whole),
        Column("level", "level", _db),
        Column("likeness", "similarity", _two),
    ),
}
"""The columns of each field of `Report`, and of the minutes of a narration."""


def tables(report: Report) -> Iterator[Table]:
    """A table of each part of each system that was measured, and one of the minutes of each narration."""
    for part in Report.model_fields:
        scores = getattr(report, part)
        for system in dict.fromkeys(score.system for score in scores):
            title = f"{part.replace('_', ' ')}, {system}"
            yield _table(part, title, [score for score in scores if score.system == system])
    for score in report.narration:
        yield _table("minutes", f"minute by minute, {score.system}", score.minutes)


def _table(columns: str, title: str, rows: Sequence[Any]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in COLUMNS[columns]:
        table.add_column(column.heading, no_wrap=column is _CASE)
    for row in rows:
        values = ((column, getattr(row, column.field)) for column in COLUMNS[columns])
        table.add_row(*("" if value is None else column.shown(value) for column, value in values))
    return table
