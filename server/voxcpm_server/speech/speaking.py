"""Speech as a stream of the event loop, made by the runtime on a thread of its own.

Closing a stream cancels its generation at the next call of a step model, within one Euler step.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from voxcpm_runtime import Audio, Cancelled, CancelToken, Plan, Progress
from voxcpm_server.errors import speech_too_long
from voxcpm_server.speech.served_bundles import Served

if TYPE_CHECKING:
    from voxcpm_server.speech.service import Service

Item = TypeVar("Item")
# How often a thread that waits for its reader checks for cancellation.
_POLL_SECONDS = 0.05


class Pipe(ABC, Generic[Item]):
    """A bounded queue from a thread to the event loop, on which it is created; `async for` takes the items.

    `put` and `end` are called on the thread, everything else on the event loop. room: items that may wait; then `put`
    blocks. served: the bundle, which stays open until nothing more is made.
    """

    def __init__(self, service: Service, served: Served, room: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item | Exception | None] = deque()
        self._arrived = asyncio.Event()
        self._room = threading.Semaphore(room)
        self._ended: asyncio.Future[None] = self._loop.create_future()
        served.hold()
        self.when_ended(served.release)
        service.streams.add(self)
        self.when_ended(lambda: service.streams.discard(self))

    def put(self, item: Item, check: Callable[[], object]) -> float:
        """Add an item, and return the seconds that it waited for room. check: called meanwhile, may raise."""
        began = time.perf_counter()
        while not self._room.acquire(timeout=_POLL_SECONDS):
            check()
        self.on_the_loop(self._add, item)
        return time.perf_counter() - began

    def end(self, error: Exception | None = None) -> None:
        """Nothing more is made. The reader gets the error after all items."""
        self.on_the_loop(self.end_now, error)

    def on_the_loop(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the event loop call a function, from any thread."""
        # The loop may be closed: then nobody is there to read.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    async def peek(self) -> Item | None:
        """The next item, which stays; None at the end. Raises the error that it ended with, once."""
        while not self._items:
            self._arrived.clear()
            await self._arrived.wait()
        item = self._items[0]
        if isinstance(item, Exception):
            self._items[0] = None
            raise item
        return item

    def __aiter__(self) -> Pipe[Item]:
        return self

    async def __anext__(self) -> Item:
        item = await self.peek()
        if item is None:
            raise StopAsyncIteration
        self._items.popleft()
        self._room.release()
        return item

    def discard(self) -> None:
        """Ignore everything that has not been read."""
        self._items = deque([None])

    def when_ended(self, callback: Callable[[], object]) -> None:
        """Call this on the event loop when nothing more is made."""
        self._ended.add_done_callback(lambda _: callback())

    async def ended(self) -> None:
        """Wait until nothing more is made."""
        # A cancelled waiter must not make it look as if the thread had ended.
        await asyncio.shield(self._ended)

    @abstractmethod
    async def aclose(self) -> None:
        """Cancel what is still to be made, and wait until it has ended."""

    def end_now(self, error: Exception | None = None) -> None:
        """`end`, on the event loop."""
        self._add(error)
        if not self._ended.done():
            self._ended.set_result(None)

    def _add(self, item: Item | Exception | None) -> None:
        self._items.append(item)
        self._arrived.set()


class Playback:
    """A listener who plays a stream from its first piece on, without a pause as long as there is audio."""

    def __init__(self) -> None:
        self._heard_until: float | None = None
        self.ran_out = False
        """Whether a piece came too late, although its text was there in time."""

    def takes(self, seconds: float, text_since: float = -math.inf) -> None:
        """A piece of so many seconds was made.

        text_since: when its text came (`time.perf_counter`). A listener who had heard everything by then waited for the
        text, not for the speech.
        """
        now = time.perf_counter()
        if self._heard_until is not None and text_since <= self._heard_until < now:
            self.ran_out = True
        self._heard_until = max(now, self._heard_until or now) + seconds

    def pauses(self, seconds: float) -> None:
        """The reader took nothing for so long, and has audio that it has not heard."""
        if self._heard_until is not None:
            self._heard_until += seconds


class SpeechStream(Pipe[Audio]):
    """One speech: `plan`, `begin`, then its pieces (samples,) as they are made. `aclose` ends it at any time.

    At most `buffer_seconds` of pieces wait; then speaking pauses. The turn is left when the speech is made, not when it
    is read. owner: whose turn it takes. whole: one piece, with retries if its length
    does not fit the text. speed: how many times faster it is played than spoken. since: when the request came
    (`time.perf_counter`).
    """

    plan: Plan

    def __init__(
        self, service: Service, served: Served, owner: str, *, whole: bool, speed: float, since: float
    ) -> None:
        patch_seconds = served.tts.bundle.architecture.patch_seconds
        super().__init__(service, served, max(1, int(service.settings.buffer_seconds / patch_seconds)))
        self._service = service
        self._tts = served.tts
        self._owner = owner
        self._whole = whole
        self._speed = speed
        self._since = since
        self._cancel = CancelToken()
        self._too_long = False
        self._tokens_of: dict[int, int] = {}
        self._beginning: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self.patches = 0
        """Patches made so far."""

    @property
    def text_tokens(self) -> int:
        """Tokens of the text spoken so far."""
        return sum(self._tokens_of.values())

    async def prepare(self, given: Mapping[str, Any]) -> None:
        """Check it as far as possible before its turn. given: arguments of `VoxCPM.plan`, whose errors it raises."""
        self.plan = await run_in_threadpool(
            self._tts.plan, **given, progress=self._heard, cancel=self._cancel
        )

    def begin(self) -> asyncio.Task[None]:
        """Speak as soon as there is a turn. The task ends when the first piece is there.

        It raises what the speech raises, and ApiError if the queue is full.
        """
        self._beginning = asyncio.ensure_future(self._begin())
        return self._beginning

    async def aclose(self) -> None:
        """Cancel what is still to be made, and wait until it has ended."""
        self.discard()
        self._cancel.cancel()
        if self._beginning is not None:
            await stopped(self._beginning)
        if self._thread is None:
            self.end_now()
        await self.ended()

    async def _begin(self) -> None:
        turn = await self._service.queue.enter(self._owner)
        self.when_ended(turn.leave)
        # Dedicated thread: pool shutdown would block, and the queue bounds their number.
        thread = threading.Thread(target=self._make, name="speech", daemon=True)
        thread.start()
        self._thread = thread
        await self.peek()
        self._service.metrics.first_audio.observe(time.perf_counter() - self._since)

    def _heard(self, progress: Progress) -> None:
        self.patches += 1
        self._tokens_of[progress.segment] = progress.segment_tokens
        if progress.audio_seconds > self._service.settings.max_audio_seconds:
            self._too_long = True
            self._cancel.cancel()

    # A generator, so that recordings are encoded on the stream's thread, too.
    def _pieces(self) -> Iterator[Audio]:
        if self._whole:
            yield self._tts.speak_plan(self.plan).audio
        else:
            yield from self._tts.stream_plan(self.plan, chunk_patches=1)

    def _make(self) -> None:
        """The thread's work."""
        rate = self._tts.sample_rate
        seconds, work, outcome = 0.0, 0.0, "finished"
        last: Exception | None = None
        playback = Playback()
        started = time.perf_counter()
        try:
            with contextlib.closing(self._pieces()) as pieces:  # type: ignore[type-var]
                for piece in pieces:
                    work += time.perf_counter() - started
                    seconds += len(piece) / rate
                    playback.takes(len(piece) / rate / self._speed)
                    playback.pauses(self.put(piece, self._cancel.check))
                    started = time.perf_counter()
                work += time.perf_counter() - started
        except Exception as error:  # noqa: BLE001 - raised where the pieces are read
            # The error and its frames refer to each other: KV caches in them would stay until a full garbage
            # collection, which under load is minutes away.
            traceback.clear_frames(error.__traceback__)
            outcome, last = "failed", error
            if isinstance(error, Cancelled) and self._too_long:
                last = speech_too_long(self._service.settings.max_audio_seconds)
            elif isinstance(error, Cancelled):
                outcome = "cancelled"
        metrics = self._service.metrics
        metrics.audio_seconds.inc(seconds)
        metrics.count_speech(outcome, underrun=playback.ran_out, work=work, seconds=seconds)
        self.end(last)


async def stopped(task: asyncio.Future[Any]) -> None:
    """Cancel a task, if it is not done, and wait until it has ended."""
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
