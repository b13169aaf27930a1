"""Changed inputs by atheris, which keeps those that reach code that no earlier one did."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from robustness.fuzz import GUIDED, inputs
from robustness.totals import Totals


@pytest.mark.torture
@pytest.mark.parametrize("name", GUIDED)
def test_inputs_that_reach_new_code_are_refused_or_taken(
    name: str, speaking_bundle: Path, totals: Totals, torture_seed: int, share: Callable[[int], int]
) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: it has wheels for Linux on x86-64")
    count = share(inputs(name, "atheris"))
    given = (name, speaking_bundle, count, torture_seed)
    done = subprocess.run(
        [sys.executable, "-m", "robustness.guided", *map(str, given)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        # A busy machine takes ten minutes for one that needs eighty seconds of processor time.
        timeout=1800,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (counts,) = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    totals.record("Fuzz", f"{name}, atheris", counts)
    assert sum(counts.values()) == count
