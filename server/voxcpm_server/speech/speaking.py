"""Speech as an asynchronous stream, generated on a dedicated thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from starlette.concurrency import run_in_threadpool

from voxcpm_runtime import Cancelled, CancelToken, Plan, Progress, Word
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.speech.request import Request
from voxcpm_server.errors import client_closed, speech_too_long
from voxcpm_server.speech.served_bundles import ServedBundle

if TYPE_CHECKING:
    from voxcpm_server.speech.queueing import QueueTurn
    from voxcpm_server.speech.service import Service

_log = logging.getLogger("voxcpm_server")
Item = TypeVar("Item")
# How often a thread blocked on a full buffer checks for cancellation.
_POLL_SECONDS = 0.05


class Stream(ABC, Generic[Item]):
    """Speech that a thread generates ahead of its reader, which uses `async for` on the event loop.

    `aclose` cancels it within one Euler step. served: the bundle, kept open until the thread is done. owner: the key
    whose turns it takes. capacity: buffered items, beyond which the thread blocks.
    """

    def __init__(self, service: Service, served: ServedBundle, owner: str, capacity: int) -> None:
        self.service = service
        self.owner = owner
        self.cancel = CancelToken()
        self.loop = asyncio.get_running_loop()
        self.requested_at: float | None = None
        """When it was requested (`time.perf_counter`); None before there is text."""
        self.work_seconds = 0.0  # seconds spent generating so far
        self.audio_seconds = 0.0
        self.missed: list[Word] = []  # words that are unsaid or repeated
        self.replaced = ""  # characters so far that the voice cannot say, each once
        self._served = served
        self._turn: QueueTurn | None = None
        self._items: deque[Item | Exception | None] = deque()
        self._arrived = asyncio.Event()
        self._slots = threading.Semaphore(capacity)
        self._started = False
        self._done: asyncio.Future[None] = self.loop.create_future()
        served.leases += 1
        service.streams.add(self)

    @abstractmethod
    def generate(self) -> Iterator[Item]:
        """Generate the items, on the thread. Adds to `work_seconds`, and calls `count_audio` for each piece."""

    async def enter(self) -> None:
        """Wait for a turn. Raises ApiError if the queue is full."""
        self._turn = await self.service.queue.enter(self.owner)
        if self.cancel.cancelled:
            # The thread of a cancelled session does not wait for this, and may have ended already.
            self.leave()

    def leave(self) -> None:
        """Return the turn, if it holds one."""
        if self._turn is not None:
            self._turn.leave()
            self._turn = None

    def start(self) -> None:
        """Start the thread. Dedicated: pool shutdown would block, and the queue bounds their number."""
        threading.Thread(target=self._run, name="speech", daemon=True).start()
        self._started = True

    async def peek(self) -> Item | None:
        """The next item, without removing it; None at the end. Raises the thread's error, once."""
        while not self._items:
            self._arrived.clear()
            await self._arrived.wait()
        item = self._items[0]
        if isinstance(item, Exception):
            self._items[0] = None
            raise item
        return item

    def __aiter__(self) -> Stream[Item]:
        return self

    async def __anext__(self) -> Item:
        item = await self.peek()
        if item is None:
            raise StopAsyncIteration
        self._items.popleft()
        self._slots.release()
        return item

    async def aclose(self) -> None:
        """Cancel generation, drop unread items, and wait for the thread."""
        self.cancel.cancel()
        self._items.clear()
        if not self._started:
            self._end(None)
        # Cancelling a waiter must not cancel the future.
        await asyncio.shield(self._done)

    def count_audio(self, seconds: float) -> None:
        """Record generated audio in the metrics."""
        metrics = self.service.metrics
        if not self.audio_seconds and self.requested_at is not None:
            metrics.first_audio.observe(time.perf_counter() - self.requested_at)
        self.audio_seconds += seconds
        metrics.audio_seconds.inc(seconds)

    def note(self, words: Sequence[Word], replaced: str) -> None:
        """Collect from words found those that are missed, and characters that the voice cannot say."""
        self.missed += [word for word in words if word.said != 1]
        self.replaced = "".join(dict.fromkeys(self.replaced + replaced))

    def call_on_loop(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on the event loop, from any thread."""
        # The loop may be closed already.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function, *arguments)

    def _run(self) -> None:
        outcome, last = "finished", None
        try:
            with contextlib.closing(self.generate()) as items:  # type: ignore[type-var]
                for item in items:
                    while not self._slots.acquire(timeout=_POLL_SECONDS):
                        self.cancel.check()
                    self.call_on_loop(self._add, item)
        except Exception as error:  # noqa: BLE001 - raised where the items are read
            # The error and its frames are a reference cycle: KV caches in them would stay until a full garbage
            # collection, which under load is minutes away.
            traceback.clear_frames(error.__traceback__)
            outcome, last = "cancelled" if isinstance(error, Cancelled) else "failed", error
        if self.requested_at is not None:
            self.service.metrics.speeches.labels(outcome).inc()
            if outcome == "finished" and self.work_seconds and self.audio_seconds:
                self.service.metrics.real_time_factor.observe(self.work_seconds / self.audio_seconds)
        self.call_on_loop(self._end, last)

    def _add(self, item: Item | Exception | None) -> None:
        self._items.append(item)
        self._arrived.set()

    def _end(self, error: Exception | None) -> None:
        self._add(error)
        if not self._done.done():
            self._done.set_result(None)
            self.leave()
            self._served.release()
            self.service.streams.discard(self)


class SpeechStream(Stream[Audio]):
    """The speech of a request: `prepare`, `begin`, then its pieces (samples,) as they are generated.

    Buffers up to `buffer_seconds`. The turn ends when generation does, not when everything is read. whole: one piece,
    with retries if its length does not fit the text. requested_at: arrival time of the request (`time.perf_counter`).
    """

    plan: Plan

    def __init__(
        self, service: Service, served: ServedBundle, owner: str, *, whole: bool, requested_at: float
    ) -> None:
        patch_seconds = served.tts.bundle.architecture.patch_seconds
        super().__init__(service, served, owner, max(1, int(service.settings.buffer_seconds / patch_seconds)))
        self.requested_at = requested_at
        self._tts = served.tts
        self._whole = whole
        self._tokens_of: dict[int, int] = {}
        self._first_piece: asyncio.Task[None] | None = None
        self.patches = 0
        self._words: deque[Word] = deque()
        self._timed = False

    @property
    def text_tokens(self) -> int:
        """Text tokens spoken so far."""
        return sum(self._tokens_of.values())

    async def prepare(self, request: Request, *, timed: bool = False) -> None:
        """Plan before queueing. Raises the errors of `VoxCPM.plan`. timed: find word times."""
        self._timed = timed
        watched = replace(request, progress=self._on_progress, cancel=self.cancel, on_words=self._on_words)
        self.plan = await run_in_threadpool(self._tts.plan_request, watched)
        self.note((), "".join(s.replaced for s in self.plan.opening))

    def take_words(self) -> list[Word]:
        """The words found since the last call. Those of a segment are there by its last piece."""
        return [self._words.popleft() for _ in range(len(self._words))]

    def begin(self) -> asyncio.Task[None]:
        """Wait for a turn and start. The task ends with the first piece, or raises the stream's error."""

        async def begin() -> None:
            await self.enter()
            self.start()
            await self.peek()

        self._first_piece = asyncio.ensure_future(begin())
        return self._first_piece

    async def aclose(self) -> None:
        """See `Stream`."""
        self.cancel.cancel()
        if self._first_piece is not None:
            await cancel_and_wait(self._first_piece)
        await super().aclose()

    def generate(self) -> Iterator[Audio]:
        """Generate the pieces. Prompt recordings are encoded on this thread, too."""
        started = time.perf_counter()
        with contextlib.closing(self._pieces()) as pieces:  # type: ignore[type-var]
            for piece in pieces:
                self.work_seconds += time.perf_counter() - started
                self.count_audio(len(piece) / self._tts.sample_rate)
                yield piece
                started = time.perf_counter()
            self.work_seconds += time.perf_counter() - started

    def _pieces(self) -> Iterator[Audio]:
        if self._whole:
            yield self._tts.speak_plan(self.plan).audio
        else:
            announced = len(self.replaced)
            yield from self._tts.stream_plan(self.plan, chunk_patches=1)
            log_replaced(self.replaced[announced:])

    def _on_words(self, words: Sequence[Word]) -> None:
        self._words.extend(words if self._timed else ())
        self.note(words, "")

    def _on_progress(self, progress: Progress) -> None:
        self.note((), progress.replaced)
        self.patches += progress.patches > 0  # 0 in a pause
        self._tokens_of[progress.segment] = progress.segment_tokens
        if progress.audio_seconds > self.service.settings.max_audio_seconds:
            raise speech_too_long(self.service.settings.max_audio_seconds)


def log_replaced(characters: str) -> None:
    """Log what the response cannot tell. Only their number: text is private."""
    if characters:
        _log.warning("speech: %d characters that the voice cannot say were replaced", len(characters))


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel a task unless it is done, and wait for it."""
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


async def send_with_timeout(send: Awaitable[None], patience: float) -> None:
    """Await a send. Raises ApiError (499) if it takes longer than `patience` seconds."""
    try:
        # Before Python 3.12 asyncio.wait_for ignores a cancellation if the send has just ended.
        with anyio.fail_after(patience):
            await send
    except TimeoutError:
        raise client_closed(f"the client read nothing for {patience:g} s") from None
