"""The totals of a run: one row for all tests that share it, and whole in a file whenever the run is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from documents import REPOSITORY
from robustness import totals


def entry(row: str, **outcomes: int) -> dict[str, object]:
    return {"section": "Kill", "row": row, "outcomes": outcomes, "figures": {}}


def test_tests_that_share_a_row_are_one_row() -> None:
    rows = totals.merged([entry("b", killed=2), entry("a", killed=1), entry("b", killed=3, completed=1)])

    assert [(row["row"], row["outcomes"]) for row in rows] == [
        ("a", {"killed": 1}),
        ("b", {"killed": 5, "completed": 1}),
    ]


INTERRUPTED = """
import os, signal
import pytest

def test_first(totals):
    totals.record("Kill", "first", {"killed": 3})
    assert False, "what was wrong"

def test_second(totals):
    totals.record("Kill", "second", {"killed": 4})

def test_third(totals):
    totals.record("Kill", "third", {"killed": 5})
    os.kill(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_that_is_killed_has_written_what_it_found(tmp_path: Path, workers: str) -> None:
    """The killed process is the one that reports, with and without a worker."""
    (tmp_path / "test_interrupted.py").write_text(INTERRUPTED)
    (tmp_path / "conftest.py").write_text(
        "from robustness import conftest\n"
        "from robustness.conftest import *  # noqa: F403 - its hooks and fixtures\n"
        f"conftest.TOTALS = conftest.Path({str(tmp_path / 'torture.json')!r})\n"
    )
    # A worker of the run that this test is in would be taken for one of the run that is killed.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            workers,
            "-p",
            "no:cacheprovider",
            "test_interrupted.py",
        ],
        cwd=tmp_path,
        env={**outside, "PYTHONPATH": str(REPOSITORY / "tests")},
        capture_output=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == -signal.SIGKILL, done.stdout
    found = json.loads((tmp_path / "torture.json").read_text())
    assert {row["row"]: row["outcomes"] for row in found["rows"]} == {
        "first": {"killed": 3},
        "second": {"killed": 4},
    }
    (reports,) = found["failed"].values()
    assert "what was wrong" in reports
