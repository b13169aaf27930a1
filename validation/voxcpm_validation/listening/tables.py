"""The tables of a listening test: a column for each field of the scores that has a heading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.table import Table

from voxcpm_validation.listening.parts import Report


def tables(report: Report) -> Iterator[Table]:
    """A table of each part of each system that was measured, and one of the minutes of each narration."""
    for part in Report.model_fields:
        scores = getattr(report, part)
        for system in dict.fromkeys(score.system for score in scores):
            title = f"{part.replace('_', ' ')}, {system}"
            yield _table(title, [score for score in scores if score.system == system])
    for score in report.narration:
        yield _table(f"minute by minute, {score.system}", score.minutes)


def _table(title: str, rows: Sequence[Any]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    columns = {name: field for name, field in type(rows[0]).model_fields.items() if field.title}
    for name, field in columns.items():
        table.add_column(field.title, no_wrap=name == "case")
    for row in rows:
        values = [(getattr(row, name), field.json_schema_extra["form"]) for name, field in columns.items()]
        table.add_row(*("" if value is None else form.format(value) for value, form in values))
    return table
