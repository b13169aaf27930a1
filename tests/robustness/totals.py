"""What the harness counted: cases and outcomes of each row, as one table and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

PROPERTY = "torture"


class Totals:
    """Counts of one test. They travel with its report, so that workers' counts meet in one table."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def record(
        self, section: str, row: str, outcomes: Counter[str] | dict[str, int], **figures: float
    ) -> None:
        """Add a row: its section (Kill, Faults, …), how many cases came to what, and figures with their unit in the
        name (`seconds`, `megabytes`).
        """
        entry = {"section": section, "row": row, "outcomes": dict(outcomes), "figures": figures}
        self._request.node.user_properties.append((PROPERTY, entry))


def rows(properties: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    """The rows among the properties of a test's report."""
    return [value for name, value in properties if name == PROPERTY]


def merged(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows in the order of the table, with one for all tests that share a row."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in sorted(found, key=lambda entry: (entry["section"], entry["row"])):
        row = rows.setdefault((entry["section"], entry["row"]), {**entry, "outcomes": {}})
        row["outcomes"] = dict(Counter(row["outcomes"]) + Counter(entry["outcomes"]))
        row["figures"] = {**row["figures"], **entry["figures"]}
    return list(rows.values())


def write(path: Path, rows: list[dict[str, Any]], failed: dict[str, str], **about: object) -> None:
    """Write all rows so far, the reports of the tests that failed, and what the run is, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({**about, "failed": failed, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def table(found: list[dict[str, Any]]) -> list[str]:
    """The lines of a table in Markdown, one row for each row."""
    lines = ["| section | what | cases | outcomes |", "|---|---|---|---|"]
    for entry in found:
        outcomes = [f"{count} {name}" for name, count in sorted(entry["outcomes"].items())]
        outcomes += [f"{name} {value:g}" for name, value in entry["figures"].items()]
        cases = sum(entry["outcomes"].values())
        lines.append(f"| {entry['section']} | {entry['row']} | {cases} | {', '.join(outcomes)} |")
    return lines
