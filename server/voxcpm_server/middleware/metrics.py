"""Prometheus metrics, and the outermost middleware, which counts requests and handles every error."""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sized
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxcpm_constants.errors import VoxCPMWarning
from voxcpm_runtime import SuspiciousWarning
from voxcpm_runtime.speech.results import WordsWarning
from voxcpm_runtime.words.words import missed_words
from voxcpm_server.errors import CLIENT_CLOSED, as_api_error, send_error
from voxcpm_server.speech.queueing import FairQueue

_SECONDS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0)
_FACTORS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)
_SWITCHED = 101  # status of a websocket that was accepted and closed without an error


class Metrics:
    """The metrics of one app, in its own registry: two apps in one process do not share them."""

    def __init__(self, queue: FairQueue, conversations: Sized, loaded_bundles: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.requests = self.counter(
            "requests", "Requests by route and status; 499: client disconnected.", "route", "status"
        )
        self.speeches = self.counter("speeches", "Speeches by outcome.", "outcome")
        self.first_audio = Histogram(
            "voxcpm_first_audio_seconds",
            "Seconds from the request (text in fragments: from its first complete sentence) to the first "
            "audio, including upload, loading and queueing.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.real_time_factor = Histogram(
            "voxcpm_real_time_factor", "Seconds of work per second of speech.", buckets=_FACTORS,
            registry=self.registry,
        )  # fmt: skip
        self.audio_seconds = self.counter("audio_seconds", "Seconds of speech.")
        self.suspicious = self.counter("suspicious", "Segments whose length does not fit their text.")
        self.missed_words = self.counter("missed_words", "Words that are unsaid or repeated.", "kind")
        for name, description, value in (
            ("queue_length", "Queued requests.", lambda: queue.waiting),
            ("speaking", "Texts being spoken.", lambda: queue.busy),
            ("conversations", "Open websockets and Wyoming connections.", conversations.__len__),
            ("loaded_bundles", "Bundles in memory.", loaded_bundles),
        ):
            Gauge(f"voxcpm_{name}", description, registry=self.registry).set_function(value)
        # Memory and open files on Linux.
        ProcessCollector(registry=self.registry)

    def counter(self, name: str, description: str, *labels: str) -> Counter:
        """A new counter."""
        return Counter(f"voxcpm_{name}", description, labels, registry=self.registry)


@contextlib.contextmanager
def count_suspicious_warnings(metrics: Metrics) -> Iterator[None]:
    """Count warnings about speech instead of printing them, as they may quote user text."""

    def count(message: Warning | str, category: type[Warning], *_: Any) -> None:
        if issubclass(category, SuspiciousWarning):
            metrics.suspicious.inc()
        if isinstance(message, WordsWarning):
            for kind, words in missed_words(message.words).items():
                metrics.missed_words.labels(kind).inc(len(words))

    with warnings.catch_warnings():
        warnings.simplefilter("always", VoxCPMWarning)
        warnings.showwarning = count  # type: ignore[assignment]
        yield


class ErrorAndMetricsMiddleware:
    """Turns errors into one-line responses, and counts requests by route and status.

    Sets `scope["state"]["began"]` to the arrival time (`time.perf_counter`). A websocket counts as 101 if it closes
    without an error, otherwise as the status of its error.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. After an error midway, the connection is closed before the end of the response."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        status: int | None = None
        scope.setdefault("state", {})["began"] = time.perf_counter()

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = _SWITCHED
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        # No error may reach uvicorn. A whole request is cancelled only at shutdown.
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            answer = as_api_error(error)
            if status is None and answer.status_code != CLIENT_CLOSED:
                await send_error(answer, scope, receive, send_and_note)
            elif status == _SWITCHED:
                with contextlib.suppress(Exception):
                    await send({"type": "websocket.close", "code": answer.close_code, "reason": ""})
            status = answer.status_code
        finally:
            # A response that was cut off began with 200, a websocket with 101.
            status = scope["state"].get("final_status", status)
            # The route's pattern, as paths are unbounded.
            route = getattr(scope.get("route"), "path", "other").removeprefix("/v1")
            self._metrics.requests.labels(route, str(status or CLIENT_CLOSED)).inc()
