"""The findings of a lint: as JSON, as lines, and as one short table of a bundle."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict

from voxcpm_constants.step_models import Precision
from voxcpm_constants.targets import MAIN

HEADER = ("rule", "package", "operation", "found", "expected")


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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
    """Why it is accepted in this package; None for a fault."""

    @property
    def place(self) -> str:
        """The step model, and the function if the package has several."""
        package = PurePosixPath(self.package).stem
        return package if self.function == MAIN else f"{package} {self.function}"


class PrecisionReport(_Record):
    """What was checked in one precision, and what was found."""

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
    def is_clean(self) -> bool:
        """Whether every finding is accepted."""
        return not any(report.faults for report in self.precisions.values())

    def lines(self) -> Iterator[str]:
        """A line for each precision, and one for each reason to accept findings of it."""
        for precision, report in self.precisions.items():
            checked = f"{report.packages} packages, {report.operations} operations"
            faults = len(report.faults)
            verdict = f"{faults} finding{'s' * (faults > 1)}" if faults else "clean"
            accepted = Counter((f.rule, f.accepted) for f in report.findings if f.accepted)
            notes = [f"{count} {rule} accepted ({reason})" for (rule, reason), count in accepted.items()]
            yield "; ".join([f"{precision}: {checked}: {verdict}", *notes])

    def rows(self) -> list[tuple[str, ...]]:
        """Rows of the table under HEADER: all findings of a rule in a package share one, which shows the first.

        A row names its precisions unless it applies to all of them.
        """
        rows: dict[tuple[str, str, str, int], tuple[Finding, list[str]]] = {}
        for precision, report in self.precisions.items():
            for first, *others in _groups(report.faults):
                key = (first.rule, first.place, first.kind, len(others))
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
        faults = [finding for report in self.precisions.values() for finding in report.faults]
        return sorted({(f.rule, f.why, ", ".join(f.sources)) for f in faults})

    def document(self) -> dict[str, Any]:
        """All findings for JSON, and whether the bundle is clean."""
        return {"clean": self.is_clean, **self.model_dump(mode="json")}


def _groups(findings: Sequence[Finding]) -> Iterable[list[Finding]]:
    groups: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.package, finding.rule].append(finding)
    return groups.values()
