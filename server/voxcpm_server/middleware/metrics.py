"""Metrics for Prometheus: requests by outcome, the queue, first audio, real-time factor, memory."""

from __future__ import annotations

import contextlib
import resource
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from voxcpm_runtime import SuspiciousWarning
from voxcpm_server.speech.queueing import FairQueue

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0)
_FACTORS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)


class Metrics:
    """The metrics of one app, in its own registry: two apps in one process do not share them."""

    def __init__(self, queue: FairQueue) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "voxcpm_requests",
            "Requests, by route and status; 499 is a client that went away.",
            ["route", "status"],
            registry=self.registry,
        )
        self.speeches = Counter(
            "voxcpm_speeches",
            "Speeches: finished, cancelled or failed.",
            ["outcome"],
            registry=self.registry,
        )
        self.first_audio = Histogram(
            "voxcpm_first_audio_seconds",
            "Seconds from a request to its first audio, its body, loading and waiting included; "
            "of text in fragments, from its first complete sentence.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.real_time_factor = Histogram(
            "voxcpm_real_time_factor",
            "Seconds of work for a second of speech.",
            buckets=_FACTORS,
            registry=self.registry,
        )
        self.underruns = Counter(
            "voxcpm_underruns",
            "Streams of which some audio was made later than it would have been heard.",
            registry=self.registry,
        )
        self.audio_seconds = Counter("voxcpm_audio_seconds", "Seconds of speech.", registry=self.registry)
        self.suspicious = Counter(
            "voxcpm_suspicious", "Segments too long or too short for their text.", registry=self.registry
        )
        waiting = Gauge("voxcpm_queue_length", "Requests that wait.", registry=self.registry)
        waiting.set_function(lambda: queue.waiting)
        busy = Gauge("voxcpm_speaking", "Texts that are being spoken.", registry=self.registry)
        busy.set_function(lambda: queue.busy)
        self.conversations = Gauge(
            "voxcpm_conversations",
            "Websockets and Wyoming connections that are open.",
            registry=self.registry,
        )
        peak = Gauge("voxcpm_peak_memory_bytes", "Largest resident memory so far.", registry=self.registry)
        peak.set_function(_peak_memory)
        # On Linux it also has current memory and open files.
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def count_speech(self, outcome: str, *, underrun: bool, work: float, seconds: float) -> None:
        """Count a speech that has ended. work: seconds that it took. seconds: of audio, 0 for no real-time factor."""
        self.speeches.labels(outcome).inc()
        self.underruns.inc(underrun)
        if seconds and outcome == "finished":
            self.real_time_factor.observe(work / seconds)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def _peak_memory() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


@contextlib.contextmanager
def suspicious_warnings_counted(metrics: Metrics) -> Iterator[None]:
    """Count warnings about speech instead of printing them: they may quote a text."""

    def count(_message: Warning | str, category: type[Warning], *_: Any) -> None:
        if issubclass(category, SuspiciousWarning):
            metrics.suspicious.inc()

    with warnings.catch_warnings():
        warnings.simplefilter("always", SuspiciousWarning)
        warnings.showwarning = count  # type: ignore[assignment]
        yield
