"""Planning new jobs: texts are read on threads of their own, in slices, so that no key waits for another one's text."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool

from voxcpm_runtime import CancelToken, Voice
from voxcpm_server.jobs.speaking import JobTurn
from voxcpm_server.settings import Settings
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.queueing import FairQueue
from voxcpm_server.speech.served_bundles import Bundles, Served, cancelled_with
from voxcpm_server.speech.speech_requests import SpeechRequest
from voxcpm_server.speech.stored_voices import StoredVoices


class PlannedJob(NamedTuple):
    """What is known of a job whose text has been read and checked."""

    voice: Voice | None
    """The voice that it names, as it is now; None for the checkpoint's own or that of its recordings."""
    seed: int
    segments: int
    """Number of segments of its text."""


class Planner:
    """Plans jobs, one at a time: reading a text is Python's work, of which several threads do no more than one."""

    def __init__(self, settings: Settings, bundles: Bundles, voices: StoredVoices) -> None:
        self._settings = settings
        self._bundles = bundles
        self._voices = voices
        # Requests are bounded already.
        self._queue = FairQueue(1, settings.max_connections, settings.max_connections)

    async def planned(self, owner: str, asked: SpeechRequest) -> PlannedJob:
        """Read and check all that a job asks for; cancelling this ends it at the next slice of the text.

        Raises ApiError and what `VoxCPM.plan` raises for a text that cannot be spoken.
        """
        with await self._bundles.lease(asked.model) as served:
            # Whatever can be refused is refused now.
            Encoder(asked.response_format, served.speeches.sample_rate, asked.sample_rate, asked.speed)
            voice = await run_in_threadpool(self._voices.named, asked.voice_name, served.built_in_voices)
            given = await run_in_threadpool(
                asked.arguments, self._settings, served, self._settings.max_job_characters, voice
            )
            enter = partial(self._queue.enter, owner)
            slices = _Slices()
            slices.turn = turn = JobTurn(enter, await enter(), slices)
            try:
                work = partial(_planned, served, {**given, "cancel": slices})
                seed, segments = await cancelled_with(slices, work)
            finally:
                turn.leave()
        return PlannedJob(voice, seed, segments)


class _Slices(CancelToken):
    """The token of a plan that gives its turn up between two slices of the text, where it is checked."""

    turn: JobTurn | None = None

    def check(self) -> None:
        super().check()
        if self.turn is not None:
            self.turn.give_up_if_wanted()


def _planned(served: Served, given: dict[str, Any]) -> tuple[int, int]:
    """The seed of a speech and the number of its segments, after the whole text has been read and checked."""
    plan = served.tts.plan(**given)
    return plan.randomness.seed or 0, len(plan.segments)
