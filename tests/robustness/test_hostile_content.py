"""Content that was made to do harm: nothing is run, read or written outside, and memory and time have bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from robustness.hostile import CASES, CHECKPOINT_CASES, READ
from robustness.totals import Totals
from robustness.watched import REFUSED, TRACEBACK, Counted, Ended, watched

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


def test_harm_is_seen(speaking_bundle: Path) -> None:
    """The harness can fail: what reads and starts something outside is counted as that."""
    with watched("robustness.test_hostile_content:harmful", bundle=speaking_bundle) as process:
        for name in ("reads", "writes", "starts"):
            ended = process.run(name)
            assert ended.outcome == TRACEBACK, name
            assert "touched" in ended.detail


def harmful(bundle: str) -> object:
    """A scene of cases that do harm."""
    from robustness import hostile

    hostile.CASES = {
        "reads": lambda place: lambda: place.secret.read_bytes() and None,
        "writes": lambda place: lambda: place.canary.write_bytes(b"x") and None,
        "starts": lambda place: lambda: os.system(f"touch {place.canary}") and None,  # noqa: S605
    }
    return hostile.scene(bundle)


def test_a_crash_a_hang_and_memory_are_seen() -> None:
    """The harness can fail: a process that ends, one that does not, and one that takes too much."""
    with watched("robustness.test_hostile_content:ending_badly") as process:
        assert process.run("crash").outcome == "crash"
        assert process.run("memory").outcome == "memory"
        assert process.run("lines").outcome == "not one line"
        assert process.run("nothing").outcome == "same samples"


def ending_badly() -> object:
    """What crashes, takes memory, or complains in two lines, as its name says."""
    from voxcpm_constants.errors import InputError

    def run(name: str) -> Ended:
        if name == "crash":
            os.abort()
        if name == "memory":
            return Ended(str(len(bytearray(4 << 30))))
        if name == "lines":
            raise InputError("one\ntwo")
        return Ended("same samples")

    return run
