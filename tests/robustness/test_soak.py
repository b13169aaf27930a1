"""An hour of sessions, batches and cancellations from 16 threads: equal samples, and nothing grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from robustness.totals import Totals

WARM_UP = 300.0
"""Seconds after which memory stays: by then every length of text has been spoken at the same time as any other."""
GROWTH = 1.03

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


SAMPLES = 60
# glibc gives threads heaps of their own, up to eight for each core, and gives little of them back: the memory of many
# threads then follows from which of them have ever been at work at the same time, and creeps up for hours.
SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
"""What a service with many threads sets, too (docs/server.md)."""


def soaked(bundle: Path, seconds: float, seed: int) -> dict[str, Any]:
    """A run in a process of its own, where nothing else has been allocated."""
    given = (bundle, seconds, SAMPLES, seed)
    done = subprocess.run(
        [sys.executable, "-m", "robustness.soak", *map(str, given)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **SETTINGS, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def recorded(run: dict[str, Any], totals: Totals, row: str) -> list[dict[str, float]]:
    """The samples of a run, after its figures have been recorded and its results judged."""
    samples = run["samples"]
    settled = [sample for sample in samples if sample["second"] >= WARM_UP] or samples[len(samples) // 2 :]
    totals.record(
        "Soak",
        row,
        run["outcomes"],
        seconds=samples[-1]["second"],
        megabytes_settled=settled[0]["megabytes"],
        megabytes_end=samples[-1]["megabytes"],
        descriptors=samples[-1]["descriptors"],
        threads=samples[-1]["threads"],
    )
    judge(run)
    return list(settled)


def judge(run: dict[str, Any]) -> None:
    """Fails if a result differs from its single run, or descriptors or threads are not constant."""
    samples = run["samples"]
    assert not run["wrong"], "\n".join(run["wrong"])
    assert len({sample["descriptors"] for sample in samples}) == 1, f"descriptors are not constant: {samples}"
    assert len({sample["threads"] for sample in samples}) == 1, f"threads are not constant: {samples}"


@pytest.mark.torture
def test_sixteen_threads_for_a_minute(speaking_bundle: Path, torture_seed: int, totals: Totals) -> None:
    """Memory is not judged: it settles within five minutes."""
    recorded(soaked(speaking_bundle, 60, torture_seed), totals, "a minute")


@pytest.mark.soak
def test_sixteen_threads_for_an_hour(speaking_bundle: Path, torture_seed: int, totals: Totals) -> None:
    minutes = float(os.environ.get("SOAK_MINUTES", "60"))

    settled = recorded(soaked(speaking_bundle, 60 * minutes, torture_seed), totals, f"{minutes:g} minutes")

    assert settled[-1]["second"] > WARM_UP, "memory is judged after five minutes: ask for more"
    assert max(sample["megabytes"] for sample in settled) <= GROWTH * settled[0]["megabytes"], settled
