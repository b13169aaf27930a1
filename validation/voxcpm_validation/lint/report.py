"""Lint findings as JSON, as lines, and as a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel

from voxcpm_constants.step_models import Precision
from voxcpm_constants.targets import MAIN

HEADER = ("rule", "package", "operation", "found", "expected")


class _Record(BaseModel, extra="forbid", frozen=True):
    """Immutable, without other fields."""


class Finding(_Record):
    """One violation of a rule."""

    package: str
    """Path of the package, relative to the bundle."""
    function: str
    operation: str
    """Name of the operation, or of the input, state or output."""
    kind: str
    rule: str
    found: str
    expected: str
    why: str
    sources: tuple[str, ...]
    accepted: str | None = None
    """Why the finding is accepted in this package; None for a fault."""


class PrecisionReport(_Record):
    """Checks and findings of one precision."""

    packages: int
    functions: int
    operations: int
    findings: tuple[Finding, ...]

    @property
    def faults(self) -> list[Finding]:
        """The findings that are not accepted."""
        return [finding for finding in self.findings if finding.accepted is None]


class LintReport(_Record):
    """The findings in each precision of a bundle."""

    bundle: str
    target: str
    precisions: dict[Precision, PrecisionReport]

    @property
    def faults(self) -> list[Finding]:
        """The findings in any precision that are not accepted."""
        return [finding for report in self.precisions.values() for finding in report.faults]

    def lines(self) -> Iterator[str]:
        """A line per precision, with the reasons for accepted findings."""
        for precision, report in self.precisions.items():
            count = len(report.faults)
            verdict = f"{count} finding{'s' * (count > 1)}" if count else "clean"
            accepted = Counter((f.rule, f.accepted) for f in report.findings if f.accepted)
            notes = [f"{count} {rule} accepted ({reason})" for (rule, reason), count in accepted.items()]
            checked = f"{precision}: {report.packages} packages, {report.operations} operations: {verdict}"
            yield "; ".join([checked, *notes])

    def rows(self) -> list[tuple[str, ...]]:
        """Rows of the table under HEADER: all findings of a rule in a package share one, which shows the first.

        A row names its precisions unless it applies to all of them.
        """
        rows: dict[tuple[str, str, str, int], tuple[Finding, list[str]]] = {}
        for precision, report in self.precisions.items():
            groups: dict[tuple[str, str], list[Finding]] = defaultdict(list)
            for finding in report.faults:
                groups[finding.package, finding.rule].append(finding)
            for first, *others in groups.values():
                package = PurePosixPath(first.package).stem
                place = package if first.function == MAIN else f"{package} {first.function}"
                key = (first.rule, place, first.kind, len(others))
                rows.setdefault(key, (first, []))[1].append(precision)
        return [
            (
                rule,
                place if len(found) == len(self.precisions) else f"{place} ({', '.join(found)})",
                f"{kind} {first.operation}{f' and {others} more' * (others > 0)}",
                first.found,
                first.expected,
            )
            for (rule, place, kind, others), (first, found) in sorted(rows.items(), key=lambda row: row[0])
        ]

    def reasons(self) -> list[tuple[str, str, str]]:
        """(rule, why, sources) of each rule that the table names."""
        return sorted({(f.rule, f.why, ", ".join(f.sources)) for f in self.faults})

    def document(self) -> dict[str, Any]:
        """All findings for JSON, and whether the bundle is clean."""
        return {"clean": not self.faults, **self.model_dump(mode="json")}
