"""Content that was made to do harm: nothing is run, read or written outside, and memory and time have bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from robustness.hostile import CASES, CHECKPOINT_CASES, READ
from robustness.totals import Totals
from robustness.watched import REFUSED, Counted, watched

HARMLESS = (READ, REFUSED)
# What is slow alone: every text is read at 4,000 characters ten times.
SOME = [name for name in CASES if name not in CHECKPOINT_CASES and not name.startswith("text of")]


def _run(names: list[str], totals: Totals, row: str, **given: object) -> None:
    counted = Counted()
    with watched("robustness.hostile:scene", **given) as process:
        for name in names:
            ended = process.run(name)
            counted.add(name, ended)
            if name.startswith(
                ("link", "unlisted", "blob", "pickle", "npy", "JSON", "manifest", "shards", "safetensors")
            ):
                assert ended.outcome != READ, f"{name} was read without a word"
    totals.record("Hostile content", row, counted.outcomes)
    counted.check()


def test_hostile_files_and_names(speaking_bundle: Path, totals: Totals) -> None:
    _run(SOME, totals, "bundles, voices, recordings, names", bundle=speaking_bundle)


@pytest.mark.torture
def test_hostile_texts(speaking_bundle: Path, totals: Totals) -> None:
    texts = [name for name in CASES if name.startswith("text of")]
    _run(texts, totals, "texts", bundle=speaking_bundle)


def test_hostile_checkpoints(speaking_bundle: Path, tiny_checkpoint: Path, totals: Totals) -> None:
    _run(list(CHECKPOINT_CASES), totals, "checkpoints", bundle=speaking_bundle, checkpoint=tiny_checkpoint)
