"""Speaking one job on a thread: segment after segment into its folder, then all of them into one file."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import shutil
import time
from pathlib import Path
from typing import Protocol

from voxcpm_runtime import CancelToken, InputError, Progress, SavedSegments, SpokenSegment, Voice
from voxcpm_server.errors import ApiError
from voxcpm_server.jobs.store import Job, JobStore, appearing
from voxcpm_server.settings import MEGABYTE, Settings
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.queueing import FairQueue, Turn
from voxcpm_server.speech.served_bundles import Served
from voxcpm_server.speech.speech_requests import RECORDINGS, SpeechRequest

VOICE_FILE = "voice.voice"
"""The file of a job's voice in its folder."""
_POLL_SECONDS = 0.05
_SECONDS_BETWEEN_CHECKS = 5
# Of speech, encoded at a time.
_PIECE_SECONDS = 10


class RunningJob:
    """The job that is being spoken: its progress, and its cancellation."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.cancel = CancelToken()
        self.starts = job.starts
        """Starts since its latest finished segment, this one included."""
        self.seconds_of: dict[int, float] = {}
        """Seconds of speech of each finished segment, by its index."""
        self.current_seconds = 0.0
        self.remaining_seconds: float | None = None

    @property
    def starts_before(self) -> int:
        """Starts without this one."""
        return max(0, self.starts - 1)

    @property
    def audio_seconds(self) -> float:
        """Seconds of speech so far."""
        return sum(self.seconds_of.values()) + self.current_seconds


def spoken_job(
    store: JobStore, running: RunningJob, served: Served, settings: Settings, turn: JobTurn
) -> int:
    """Speak a job on this thread, and return the size of its speech's file, which is then there.

    turn: yielded to requests. Raises Cancelled, what `VoxCPM.speak` raises, OSError and sqlite3.Error if the disk is
    full, and ApiError if the speech is too long, or its files are too large.
    """
    job, folder, tts = running.job, store.path(running.job.id), served.tts
    asked = SpeechRequest.model_validate({**job.asked, "seed": job.seed})
    asked.attach({field: (folder / field).read_bytes() for field in RECORDINGS if (folder / field).is_file()})
    voice = _voice(folder / VOICE_FILE) if (folder / VOICE_FILE).is_file() else None
    given = asked.arguments(settings, served, settings.max_job_characters, voice)

    bound = _SizeBound(store, settings)

    def heard(progress: Progress) -> None:
        seconds = progress.patches * tts.bundle.architecture.patch_seconds
        running.current_seconds = 0.0 if progress.segment in running.seconds_of else seconds
        running.remaining_seconds = progress.remaining_seconds
        if running.audio_seconds > settings.max_job_audio_seconds:
            raise ApiError(
                400,
                f"the speech is longer than {settings.max_job_audio_seconds:g} s, the most of a job here",
                param="input",
                code="speech_too_long",
            )
        # A slot is kept to the end of the segment; without a turn nobody could speak in it.
        if not served.speeches.shares_slots:
            turn.yield_if_wanted()

    def finished(index: int, samples: int, *, spoken: bool) -> None:
        running.seconds_of[index] = samples / tts.sample_rate
        running.current_seconds = 0.0
        if spoken:
            done, running.starts = len(running.seconds_of), 0
            store.change(job.id, segments_done=done, audio_seconds=running.audio_seconds, starts=0)
            bound.check()
            turn.yield_if_wanted()

    with _Segments(folder / job.audio_name, tts.bundle.digest, job.seed, finished) as saved:
        plan = tts.plan(**given, progress=heard, cancel=running.cancel, saved_segments=saved)
        speech = served.speeches.speak_plan(plan)
    running.seconds_of, running.current_seconds = {0: speech.audio_seconds}, 0.0
    # Before the file: once that exists, the job is finished, even if the server is killed.
    spoken = len(speech.segments)
    store.change(job.id, segments_done=spoken, segments=spoken, audio_seconds=speech.audio_seconds)
    encoder = Encoder(asked.response_format, tts.sample_rate, asked.sample_rate, asked.speed)
    with appearing(folder / job.audio_name) as file:
        file.write(encoder.header())
        for at in range(0, len(speech.audio), _PIECE_SECONDS * tts.sample_rate):
            running.cancel.check()
            file.write(encoder.encode(speech.audio[at : at + _PIECE_SECONDS * tts.sample_rate]))
        file.write(encoder.finish())
        size = file.tell()
        file.seek(0)
        file.write(encoder.header(encoder.samples))
    return size


def _voice(path: Path) -> Voice:
    """The voice of a job. Raises OSError if it cannot be read: the file is the server's, not the client's."""
    try:
        return Voice.load(path)
    except InputError as error:
        raise OSError(str(error)) from None


def finished_size(store: JobStore, running: RunningJob) -> int | None:
    """Size in bytes of a speech that is complete although its row does not say so; otherwise None."""
    try:
        size = (store.path(running.job.id) / running.job.audio_name).stat().st_size
    except FileNotFoundError:
        return None
    running.seconds_of = {0: running.job.audio_seconds}
    return size


class _SizeBound:
    """Checks the size of all files every few seconds: a check walks through the files of all jobs."""

    def __init__(self, store: JobStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._checked_at = -math.inf

    def check(self) -> None:
        """Raises ApiError (507) if the files are larger than they may be."""
        if time.monotonic() - self._checked_at >= _SECONDS_BETWEEN_CHECKS:
            check_size(self._store, self._settings)
            self._checked_at = time.monotonic()


def check_size(store: JobStore, settings: Settings) -> None:
    """Raises ApiError (507) if the files of all jobs are larger than they may be."""
    maximum = settings.max_jobs_megabytes
    if store.size() >= maximum * MEGABYTE:
        raise ApiError(507, f"the jobs take {maximum:g} MB, the most that they may; delete one")


class _Finished(Protocol):
    def __call__(self, index: int, samples: int, *, spoken: bool) -> None: ...


class _Segments(SavedSegments):
    """The finished segments of a job.

    finished: called with the index and length of each, and whether it was spoken now or before a restart.
    """

    def __init__(self, output: Path, digest: str, seed: int, finished: _Finished) -> None:
        super().__init__(output, digest, seed, drawn=False)
        self._finished = finished

    def __enter__(self) -> _Segments:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def get(self, index: int) -> SpokenSegment | None:
        """The saved segment of that index."""
        segment = super().get(index)
        if segment is not None:
            self._finished(index, len(segment.audio), spoken=False)
        return segment

    def put(self, index: int, segment: SpokenSegment) -> None:
        """Save a segment. Raises OSError if it cannot be written, ApiError if it has no room."""
        try:
            super().put(index, segment)
        except InputError as error:
            raise OSError(str(error)) from None
        self._finished(index, len(segment.audio), spoken=True)


def discard_segments(store: JobStore, job: Job) -> None:
    """Delete the finished segments of a job that is not being spoken. Those that cannot be stay until the job is."""
    with contextlib.suppress(OSError):
        for folder in store.path(job.id).glob(".*.segments"):
            shutil.rmtree(folder, ignore_errors=True)


class JobTurn:
    """A job's turn, which it yields to requests."""

    def __init__(self, queue: FairQueue, turn: Turn, cancel: CancelToken) -> None:
        self._queue = queue
        self._turn = turn
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()

    def leave(self) -> None:
        """Let the next request in."""
        self._turn.leave()

    def yield_if_wanted(self) -> None:
        """If a request waits, let it in, and wait for the next turn. Called on the job's thread."""
        if not self._turn.is_wanted:
            return
        again = asyncio.run_coroutine_threadsafe(self._again(), self._loop)
        while not again.done():
            concurrent.futures.wait([again], _POLL_SECONDS)
            if self._cancel.cancelled:
                again.cancel()
                self._cancel.check()

    async def _again(self) -> None:
        self._turn.leave()
        self._turn = await self._queue.enter_last()
