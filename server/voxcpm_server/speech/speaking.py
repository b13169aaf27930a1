"""The runtime's generators as streams of the event loop, each on a thread of its own.

Closing a stream cancels its generation at the next call of a step model, within one Euler step.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool

from voxcpm_runtime import Audio, Cancelled, CancelToken, Plan, Progress, Session, Speech, VoxCPM
from voxcpm_server.errors import ApiError, speech_too_long
from voxcpm_server.middleware.metrics import Metrics
from voxcpm_server.settings import Settings
from voxcpm_server.speech.pipe import Pipe, Playback
from voxcpm_server.speech.queueing import FairQueue, Turn


class Speeches:
    """Speaks with one bundle: plans, waits in the queue, and streams."""

    def __init__(self, tts: VoxCPM, settings: Settings, queue: FairQueue, metrics: Metrics) -> None:
        self._tts = tts
        self._settings = settings
        self._metrics = metrics
        self._running: set[SpeechStream] = set()
        self.queue = queue

    @property
    def sample_rate(self) -> int:
        """Hz of the speech."""
        return self._tts.sample_rate

    async def planned(self, given: Mapping[str, Any]) -> Planned:
        """A speech that has been checked as far as possible before its turn.

        given: arguments of `VoxCPM.speak`. Raises what `VoxCPM.plan` raises.
        """
        bound = _LengthBound(self._settings.max_audio_seconds)
        plan = await run_in_threadpool(self._tts.plan, **given, progress=bound, cancel=bound.cancel)
        return Planned(plan, bound)

    async def begin(
        self, owner: str, planned: Planned, *, whole: bool, speed: float, began: float
    ) -> SpeechStream:
        """A stream of speech whose first piece is there, so that errors can still be answered with a status.

        owner: whose turn it takes. whole: one piece, with retries if its length does not fit the text. speed: how many
        times faster it is played than spoken. began: when the request came (`time.perf_counter`).

        Raises what `VoxCPM.speak_plan` raises, and ApiError if the queue is full, at once, or the speech too long.
        """
        plan, bound = planned
        chunks = self._whole(plan) if whole else self._streamed(plan)
        room = max(1, int(self._settings.buffer_seconds / self._tts.bundle.architecture.patch_seconds))
        turn = await self.queue.enter(owner)
        try:
            stream = SpeechStream(chunks, plan, bound, turn, self._metrics, room, speed, began)
        except BaseException:
            # No thread could be started that would leave it.
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
        """The whole speech of a plan, on this thread and without a turn. Raises as `VoxCPM.speak_plan`."""
        return self._tts.speak_plan(plan)

    def session(self, **given: Any) -> Session:
        """A session, which speaks on its own thread. Arguments and errors as of `VoxCPM.session`."""
        return self._tts.session(**given)

    async def close(self) -> None:
        """Cancel all streams, and wait until they have ended."""
        for stream in list(self._running):
            await stream.aclose()

    # Generators, so that recordings are encoded on the stream's thread, too.
    def _whole(self, plan: Plan) -> Iterator[Audio]:
        yield self.speak_plan(plan).audio

    def _streamed(self, plan: Plan) -> Iterator[Audio]:
        yield from self._tts.stream_plan(plan, chunk_patches=1)


class _LengthBound:
    """A progress callback that counts patches and tokens, and cancels a speech that becomes too long."""

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self.cancel = CancelToken()
        self.exceeded = False
        self.patches = 0
        self.tokens_of: dict[int, int] = {}
        """Text tokens of each segment so far, by its index."""

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


class SpeechStream(Pipe[Audio]):
    """Pieces of speech (samples,) as they are made; `aclose` ends it.

    At most `room` pieces wait; then speaking pauses. The turn is left when the speech is made, not when it is read.
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
        super().__init__(room)
        self.plan = plan
        self._chunks = chunks
        self._bound = bound
        self._metrics = metrics
        self._speed = speed
        self._began = began
        self._first: Audio | None = None
        self.when_done(turn.leave)
        # Dedicated thread: pool shutdown would block, and the queue bounds their number.
        threading.Thread(target=self._make, name="speech", daemon=True).start()

    @property
    def patches(self) -> int:
        """Patches made so far."""
        return self._bound.patches

    @property
    def text_tokens(self) -> int:
        """Tokens of the text spoken so far."""
        return sum(self._bound.tokens_of.values())

    async def first(self) -> None:
        """Wait for the first piece, and keep it for the reader."""
        self._first = await super().take()
        self._metrics.first_audio.observe(time.perf_counter() - self._began)

    async def take(self) -> Audio | None:
        """The next piece (samples,); None at the end. Raises what the generation raised."""
        if self._first is None:
            return await super().take()
        first, self._first = self._first, None
        return first

    async def aclose(self) -> None:
        """Cancel what is still to be made, and wait until it has ended."""
        self.discard()
        self._bound.cancel.cancel()
        await self.done()

    def _make(self) -> None:
        """The thread's work."""
        rate = self.plan.bundle.architecture.output_sample_rate
        seconds, work, outcome = 0.0, 0.0, "finished"
        last: Exception | None = None
        playback = Playback()
        started = time.perf_counter()
        try:
            with contextlib.closing(self._chunks) as chunks:  # type: ignore[type-var]
                for chunk in chunks:
                    work += time.perf_counter() - started
                    seconds += len(chunk) / rate
                    playback.takes(len(chunk) / rate / self._speed)
                    playback.pauses(self.put(chunk, self._bound.cancel.check))
                    started = time.perf_counter()
                work += time.perf_counter() - started
        except Cancelled as error:
            outcome = "failed" if self._bound.exceeded else "cancelled"
            last = self._bound.error() if self._bound.exceeded else error
        except Exception as error:  # noqa: BLE001 - raised where the pieces are read
            outcome, last = "failed", error
        if last is not None:
            # The error and its frames refer to each other: KV caches in them would stay until a full garbage
            # collection, which under load is minutes away.
            traceback.clear_frames(last.__traceback__)
        self._metrics.audio_seconds.inc(seconds)
        self._metrics.count_speech(outcome, underrun=playback.ran_out, work=work, seconds=seconds)
        self.end(last)
