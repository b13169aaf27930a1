"""Metrics for Prometheus, and the outermost middleware, which counts requests and answers every error."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
import time
import warnings
from collections.abc import Iterator, Sized
from functools import partial
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxcpm_runtime import SuspiciousWarning
from voxcpm_server.errors import CLIENT_GONE, as_api_error, close_code, refuse
from voxcpm_server.speech.queueing import FairQueue

_SECONDS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0)
_FACTORS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)
_SWITCHED = 101
"""Status of a websocket that was accepted and closed without an error."""


class Metrics:
    """The metrics of one app, in its own registry: two apps in one process do not share them."""

    def __init__(self, queue: FairQueue, conversations: Sized) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter(
            "voxcpm_requests",
            "Requests by route and status; 499: the client disconnected.",
            ["route", "status"],
        )
        self.speeches = counter("voxcpm_speeches", "Speeches: finished, cancelled or failed.", ["outcome"])
        self.first_audio = histogram(
            "voxcpm_first_audio_seconds",
            "Seconds from a request, or for text in fragments from its first complete sentence, to its first "
            "audio, including upload, loading and queue.",
            buckets=_SECONDS,
        )
        self.real_time_factor = histogram(
            "voxcpm_real_time_factor", "Seconds of work for a second of speech.", buckets=_FACTORS
        )
        self.underruns = counter(
            "voxcpm_underruns", "Streams that would have stalled if played from their first piece on."
        )
        self.audio_seconds = counter("voxcpm_audio_seconds", "Seconds of speech.")
        self.suspicious = counter("voxcpm_suspicious", "Segments too long or too short for their text.")
        for name, description, value in (
            ("voxcpm_queue_length", "Waiting requests.", lambda: queue.waiting),
            ("voxcpm_speaking", "Texts being spoken.", lambda: queue.busy),
            (
                "voxcpm_conversations",
                "Open websockets and Wyoming connections.",
                conversations.__len__,
            ),
            ("voxcpm_peak_memory_bytes", "Largest resident memory so far.", _peak_memory),
        ):
            Gauge(name, description, registry=self.registry).set_function(value)
        # On Linux it also has current memory and open files.
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def count_speech(self, outcome: str, *, underrun: bool, work: float, seconds: float) -> None:
        """Count a speech that has ended. work: seconds that it took. seconds: of audio, 0 for no real-time factor."""
        self.speeches.labels(outcome).inc()
        self.underruns.inc(underrun)
        if seconds and outcome == "finished":
            self.real_time_factor.observe(work / seconds)


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


class ErrorAndMetricsMiddleware:
    """Answers errors in one line, and counts requests by route and status.

    Sets `scope["state"]["began"]` to the time of the request (`time.perf_counter`). A websocket counts as 101 if it
    was closed without an error, otherwise as the status of its error.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. After an error within an answer, the connection is closed before the answer's end."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        status: int | None = None
        scope.setdefault("state", {})["began"] = time.perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = _SWITCHED
            await send(message)

        try:
            await self._app(scope, receive, noted)
        # No error may reach the server. A request as a whole is cancelled only at shutdown.
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            answer = as_api_error(error)
            if status is None and answer.status_code != CLIENT_GONE:
                await refuse(answer, scope, receive, noted)
            elif status == _SWITCHED:
                with contextlib.suppress(Exception):
                    await send({"type": "websocket.close", "code": close_code(answer), "reason": ""})
            status = answer.status_code
        finally:
            # An answer that was cut off began with 200, a websocket with 101.
            status = scope["state"].get("broken_off", status)
            # The route's pattern, not the path: a path may be anything.
            route = getattr(scope.get("route"), "path", "other").removeprefix("/v1")
            self._metrics.requests.labels(route, str(status or CLIENT_GONE)).inc()
