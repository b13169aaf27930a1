"""An hour of sessions, batches and cancellations from 16 threads: equal samples, and nothing grows."""

import json
import os
import subprocess
import sys

import pytest

from robustness.watched import child_environment

WARM_UP = 300.0
"""Seconds after which memory is stable: by then every pair of text lengths has run concurrently."""
GROWTH = 1.03
SAMPLES = 60

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def soaked(bundle, seconds, seed):
    """The samples of a run in a subprocess. Fails if results differ, or descriptors or threads change."""
    done = subprocess.run(
        [sys.executable, "-m", "robustness.soak", *map(str, (bundle, seconds, SAMPLES, seed))],
        capture_output=True,
        text=True,
        check=False,
        # glibc gives threads heaps of their own and gives little of them back: with several, memory follows from which
        # threads have ever worked at the same time, and creeps up for hours. See docs/server-operation.md.
        env=child_environment(MALLOC_ARENA_MAX="1"),
    )
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    samples = run["samples"]
    print(run["outcomes"], samples[len(samples) // 2], samples[-1])
    assert not run["wrong"], "\n".join(run["wrong"])
    for name in ("descriptors", "threads"):
        assert len({sample[name] for sample in samples}) == 1, f"{name} are not constant: {samples}"
    return samples


@pytest.mark.torture
def test_sixteen_threads_for_a_minute(speaking_bundle, torture_seed):
    """Memory is not checked: it settles within five minutes."""
    soaked(speaking_bundle, 60, torture_seed)


@pytest.mark.soak
def test_sixteen_threads_for_an_hour(speaking_bundle, torture_seed):
    minutes = float(os.environ.get("SOAK_MINUTES", "60"))
    samples = soaked(speaking_bundle, 60 * minutes, torture_seed)
    settled = [sample["megabytes"] for sample in samples if sample["second"] >= WARM_UP]
    assert settled, "memory is judged after five minutes: ask for more"
    assert max(settled) <= GROWTH * settled[0], settled
