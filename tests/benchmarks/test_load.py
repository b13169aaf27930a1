"""benchmarks/load.py: a small load on its own server, and the problems that it reports."""

import asyncio
import importlib

import pytest

from conftest import REPOSITORY


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    module = importlib.import_module("load")
    # Fewer texts to speak in advance.
    monkeypatch.setattr(module, "TEXTS", module.TEXTS[:2])
    monkeypatch.setattr(module, "SEEDS", 1)
    return module


@pytest.mark.long
def test_ten_clients_for_five_seconds_after_a_warmup_of_two(load, speaking_bundle):
    server = load.Server(str(speaking_bundle), ["--precision", "int8", "--queue", "3"])
    try:
        server.wait_until_ready()
        outcome = asyncio.run(load.load(server, 10, 2, 5, 0, str(speaking_bundle)))
        figures = load.figures(outcome, 5)
    finally:
        code = server.end()

    assert code == 0
    assert not list(load.failures(outcome, 5))
    assert figures["finished, equal to the single run"]["reader"] > 0
    # Warm-up responses are only counted by status.
    assert sum(outcome.finished.values()) < outcome.statuses.total() - outcome.statuses[503]
    assert outcome.memory[0][0] < 0 < outcome.memory[-1][0]
    assert set(outcome.statuses) <= {200, 400, 404, 503}
    assert 0 < figures["first audio of streams, s"]["p50"] <= figures["first audio of streams, s"]["p95"]
    minimum, maximum = figures["resident MB after the warm-up, min and max"]
    assert minimum == maximum == 0 or 50 < minimum <= maximum < 2000
