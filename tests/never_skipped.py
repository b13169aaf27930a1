"""Groups of tests that have jobs of their own in continuous integration, where a test that is skipped fails."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

GROUPS = ("browser", "clients", "ray", "swift")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a test of these groups fail where it would be skipped, if `CI` is set, as GitHub does.

    Otherwise a job would be green because everything in it was skipped.
    """
    report = yield
    if report.skipped and os.environ.get("CI") and any(map(item.get_closest_marker, GROUPS)):
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure in continuous integration: {report.longrepr}"
    return report
