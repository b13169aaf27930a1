"""A Markdown table of the compute units that the Core ML tests covered, from pytest's JUnit files.

    python .github/core_ml_coverage.py FOLDER UNIT...      reads FOLDER/coreml-UNIT.xml

A unit whose tests were all skipped is listed as not covered, so that a green run is not mistaken for coverage.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path


def coverage(folder: Path, units: list[str]) -> str:
    """A table with a row per unit, and a line per unit that was not covered."""
    lines = [
        "### Step models on Core ML",
        "",
        "| compute unit | passed | failed | skipped |",
        "|---|---|---|---|",
    ]
    missing: dict[str, str] = {}
    for unit in units:
        report = folder / f"coreml-{unit}.xml"
        if not report.is_file():
            lines.append(f"| `{unit}` | – | – | – |")
            missing[unit] = "no report, the run ended early"
            continue
        counts, reasons = outcomes(report)
        lines.append(f"| `{unit}` | {counts['passed']} | {counts['failed']} | {counts['skipped']} |")
        if not counts["passed"]:
            missing[unit] = ", ".join(sorted(reasons)) or "no test passed"
    lines.append("")
    uncovered = [f"**Not covered: `{unit}`** ({reason})." for unit, reason in missing.items()]
    lines += uncovered or ["Every unit was covered."]
    return "\n".join([*lines, ""])


def outcomes(report: Path) -> tuple[Counter[str], set[str]]:
    """Numbers of tests that passed, failed and were skipped, and the reasons for skipping."""
    counts: Counter[str] = Counter()
    reasons = set()
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by our own tests
        skipped = case.find("skipped")
        failed = case.find("failure") is not None or case.find("error") is not None
        counts["skipped" if skipped is not None else "failed" if failed else "passed"] += 1
        if skipped is not None:
            reasons.add(skipped.get("message") or "skipped")
    return counts, reasons


if __name__ == "__main__":
    sys.stdout.write(coverage(Path(sys.argv[1]), sys.argv[2:]))
