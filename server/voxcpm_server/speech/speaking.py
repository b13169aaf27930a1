"""The runtime's generators, each in a thread of its own, as streams of the event loop.

A stream that is closed, for whatever reason, cancels its generation, which ends at the next call of a step model:
within one Euler step.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool

from voxcpm_runtime import Audio, Cancelled, CancelToken, Plan, Progress, Session, Speech, VoxCPM
from voxcpm_server.errors import ApiError, speech_too_long
from voxcpm_server.middleware.metrics import Metrics
from voxcpm_server.settings import Settings
from voxcpm_server.speech.pipe import Pipe
from voxcpm_server.speech.playback import Playback
from voxcpm_server.speech.queueing import FairQueue, Turn

# Texts at the same time on a bundle without a batch: while one is encoded or sent, the other one is spoken.
_TURNS_WITHOUT_BATCH = 2


def turns_of(slots: int) -> int:
    """Texts that are spoken at the same time by a bundle of so many slots, unless `--concurrency` says otherwise."""
    return max(_TURNS_WITHOUT_BATCH, slots)


class Speeches:
    """Speaks for a server with one bundle: plans, waits in the queue, and streams.

    On a bundle that was converted for a batch everything speaks in the slots of one batch, and shares its calls:
    requests, sessions and jobs.
    """

    def __init__(self, tts: VoxCPM, settings: Settings, queue: FairQueue, metrics: Metrics) -> None:
        self._tts = tts
        self._settings = settings
        self._metrics = metrics
        self._running: set[SpeechStream] = set()
        slots = tts.bundle.manifest.sizes.batch
        self._batch = tts.continuous_batch() if slots > 1 else None
        self.shares_slots = self._batch is not None
        """Whether whoever speaks has a slot, which it keeps to the end of its segment."""
        self.turns = turns_of(slots)
        """Texts that it speaks at the same time, unless `--concurrency` says otherwise."""
        # A default bundle for a batch may have widened the queue beyond what this one can use.
        narrow = not self.shares_slots and settings.concurrency is None
        self.queue = queue.narrowed(self.turns) if narrow else queue
        """Where requests for this bundle wait for their turn."""

    @property
    def sample_rate(self) -> int:
        """Hz of the speech."""
        return self._tts.sample_rate

    async def planned(self, given: Mapping[str, Any]) -> Planned:
        """A speech to begin, of which all is checked that can be before it has its turn.

        given: arguments of `VoxCPM.speak`. Raises what `VoxCPM.plan` raises.
        """
        bound = _LengthBound(self._settings.max_audio_seconds)
        return Planned(
            await run_in_threadpool(self._tts.plan, **given, progress=bound, cancel=bound.cancel), bound
        )

    async def begin(
        self, owner: str, planned: Planned, *, whole: bool, speed: float, began: float
    ) -> SpeechStream:
        """A stream of speech whose first piece is there, so that all that can be refused has been refused.

        owner: whose turn it takes. whole: one piece, spoken again if its length does not fit its text. speed: how many
        times as fast it is heard as it is made. began: when the request came (`time.perf_counter`).

        Raises what `VoxCPM.speak_plan` raises, and ApiError if the queue is full, which is known at once, or the speech
        becomes too long.
        """
        plan, bound = planned
        chunks = self._whole(plan) if whole else self._streamed(plan)
        room = max(1, int(self._settings.buffer_seconds / self._tts.bundle.architecture.patch_seconds))
        turn = await self.queue.enter(owner)
        try:
            stream = SpeechStream(chunks, plan, bound, turn, self._metrics, room, speed, began)
        except BaseException:
            # There is no thread that could leave it: the system has no more of them, say.
            turn.leave()
            raise
        self._running.add(stream)
        stream.when_done(lambda: self._running.discard(stream))
        try:
            await stream.first()
        except BaseException:
            await stream.aclose()
            raise
        return stream

    def speak_plan(self, plan: Plan) -> Speech:
        """The whole speech of a plan, on this thread and without a turn. Errors: `VoxCPM.speak_plan`."""
        return (self._batch or self._tts).speak_plan(plan)

    def session(self, **given: Any) -> Session:
        """A session, which speaks on a thread of its own. Arguments and errors: `VoxCPM.session`."""
        return self._tts.session(**given, batch=self._batch)

    async def close(self) -> None:
        """Cancel what is still being spoken, and wait until it has ended."""
        for stream in list(self._running):
            await stream.aclose()
        if self._batch is not None:
            self._batch.close()

    # Both are generators, so that recordings are encoded on the stream's thread, too.
    def _whole(self, plan: Plan) -> Iterator[Audio]:
        yield self.speak_plan(plan).audio

    def _streamed(self, plan: Plan) -> Iterator[Audio]:
        yield from (self._batch or self._tts).stream_plan(plan, chunk_patches=1)


class _LengthBound:
    """A progress callback that counts, and ends a speech which becomes too long."""

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self.cancel = CancelToken()
        self.exceeded = False
        self.patches = 0
        self.tokens_of: dict[int, int] = {}
        """Number of text tokens of each segment so far, by its index."""

    def __call__(self, progress: Progress) -> None:
        self.patches += 1
        self.tokens_of[progress.segment] = progress.segment_tokens
        if progress.audio_seconds > self._max_seconds:
            self.exceeded = True
            self.cancel.cancel()

    def error(self) -> ApiError:
        return speech_too_long(self._max_seconds)


class Planned(NamedTuple):
    """A speech that has not begun."""

    plan: Plan
    bound: _LengthBound

    @property
    def seed(self) -> int:
        """The seed that reproduces this speech."""
        return self.plan.randomness.seed or 0


class SpeechStream:
    """Pieces of speech (samples,) as they are made; `async for` takes them, `aclose` ends it.

    At most `room` pieces wait; then speaking pauses. The turn is left when the speech is made, not when it is taken.
    """

    def __init__(
        self,
        chunks: Iterator[Audio],
        plan: Plan,
        bound: _LengthBound,
        turn: Turn,
        metrics: Metrics,
        room: int,
        speed: float,
        began: float,
    ) -> None:
        self.plan = plan
        self._chunks = chunks
        self._bound = bound
        self._metrics = metrics
        self._speed = speed
        self._began = began
        self._rate = plan.bundle.architecture.output_sample_rate
        self._pipe: Pipe[Audio] = Pipe(room)
        self._pipe.when_done(turn.leave)
        self._first: Audio | None = None
        # Not of a pool: its end would wait for threads, and their number is the queue's business.
        threading.Thread(target=self._make, name="speech", daemon=True).start()

    @property
    def patches(self) -> int:
        """Number of patches made so far."""
        return self._bound.patches

    @property
    def text_tokens(self) -> int:
        """Number of tokens of the text that was spoken so far."""
        return sum(self._bound.tokens_of.values())

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call this on the event loop when nothing more is made: at once, if that is so already."""
        self._pipe.when_done(callback)

    async def first(self) -> None:
        """Wait for the first piece, and keep it for the reader."""
        self._first = await self._pipe.take()
        self._metrics.first_audio.observe(time.perf_counter() - self._began)

    def __aiter__(self) -> SpeechStream:
        """The stream itself."""
        return self

    async def __anext__(self) -> Audio:
        """The next piece (samples,). Raises what the generation raised."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        piece = await self._pipe.take()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Cancel what is still to be made, and wait until it has ended."""
        self._pipe.close()
        self._bound.cancel.cancel()
        await self._pipe.done()

    def _make(self) -> None:
        """The thread's work."""
        seconds, work, outcome = 0.0, 0.0, "finished"
        last: Exception | None = None
        playback = Playback()
        started = time.perf_counter()
        try:
            with contextlib.closing(self._chunks) as chunks:  # type: ignore[type-var]
                for chunk in chunks:
                    work += time.perf_counter() - started
                    seconds += len(chunk) / self._rate
                    playback.takes(len(chunk) / self._rate / self._speed)
                    waited = time.perf_counter()
                    self._pipe.put(chunk, self._bound.cancel.check)
                    playback.pauses(time.perf_counter() - waited)
                    started = time.perf_counter()
                work += time.perf_counter() - started
        except Cancelled as error:
            outcome = "failed" if self._bound.exceeded else "cancelled"
            last = self._bound.error() if self._bound.exceeded else error
        except Exception as error:  # noqa: BLE001 - it is raised where the pieces are taken
            outcome, last = "failed", error
        if last is not None:
            # Its frames and the error refer to each other, so that the caches in them would stay until the next full
            # collection, which under load is minutes away. What remains says where it was raised.
            traceback.clear_frames(last.__traceback__)
        self._metrics.speeches.labels(outcome).inc()
        self._metrics.audio_seconds.inc(seconds)
        self._metrics.underruns.inc(playback.ran_out)
        if seconds and outcome == "finished":
            self._metrics.real_time_factor.observe(work / seconds)
        self._pipe.end(last)
