"""Jobs: long texts that are spoken in the background, one after another, and stored until they are fetched.

A job waits in the last line of the queue: it speaks when no request waits for the turn, and yields it when one does, at
the next patch, or at the end of the segment on a bundle with batch slots. Finished segments are saved, and an
interrupted job resumes after them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import sqlite3
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import Counter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from voxcpm_constants.user_folders import jobs_folder, user_path
from voxcpm_runtime import Cancelled, CancelToken, InputError, Voice
from voxcpm_server.errors import MODEL_UNAVAILABLE, ApiError, as_api_error
from voxcpm_server.jobs.speaking import (
    VOICE_FILE,
    JobTurn,
    RunningJob,
    check_size,
    discard_segments,
    finished_size,
    spoken_job,
)
from voxcpm_server.jobs.store import DONE, FAILED, MAX_STARTS, QUEUED, Job, JobStore, appearing
from voxcpm_server.rooms import Room
from voxcpm_server.speech.encoding import Encoder
from voxcpm_server.speech.served_bundles import NoRoomError, cancelled_with, to_its_end
from voxcpm_server.speech.service import Service
from voxcpm_server.speech.speech_requests import RECORDINGS, SpeechRequest
from voxcpm_server.speech.streaming import unless_gone

_log = logging.getLogger("voxcpm_server")
_DAY = 86_400
# Between deletions of old jobs.
_IDLE_SECONDS = 600
# After a disk error.
_PATIENCE_SECONDS = 5
# Errors that may pass: the job is retried after a pause that doubles each time.
_TRANSIENT = {MODEL_UNAVAILABLE, "device_unavailable", "loading"}
FIRST_PAUSE, MAX_PAUSE = 5.0, 600.0
# Retry-After when there are too many jobs.
_RETRY_SECONDS = "60"


class _PlannedJob(NamedTuple):
    """A job whose text has been read and checked."""

    voice: Voice | None
    """The voice that it names, as it is now; None for the checkpoint's own or that of its recordings."""
    seed: int
    segments: int


class Jobs(Room):
    """The jobs of a server. It belongs to one event loop."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._settings = settings = service.settings
        self._bundles = service.bundles
        self._ended = Counter(
            "voxcpm_jobs", "Jobs: done or failed.", ["outcome"], registry=service.metrics.registry
        )
        self._max_per_key = service.max_per_key(settings.max_jobs)
        self._opened: JobStore | None = None
        self._why_not = "this server takes no jobs (--max-jobs is 0)"
        self._wake = asyncio.Event()
        self._working: asyncio.Task[None] | None = None
        self._speaking: asyncio.Task[None] | None = None
        self._running: RunningJob | None = None
        # When each paused job is retried (`time.monotonic`), and the length of its pause in seconds.
        self._pauses: dict[str, tuple[float, float]] = {}
        # Reading texts is Python's work: several threads would be no faster than one.
        self._planning = asyncio.Lock()
        self._submitting = asyncio.Lock()
        # A job must not be deleted between being chosen and becoming the running one.
        self._choosing = asyncio.Lock()

    @property
    def available(self) -> bool:
        """Whether this server takes jobs."""
        return self._opened is not None

    async def open(self) -> None:
        """Open the folder. Raises InputError if one was chosen that cannot be used.

        If the default one cannot be used, for example because another server uses it, there are no jobs.
        """
        if not self._settings.max_jobs:
            return
        chosen = self._settings.jobs_folder
        folder = jobs_folder() if chosen is None else user_path(chosen).absolute()
        try:
            self._opened = await run_in_threadpool(JobStore, folder)
        except InputError as error:
            self._why_not = "this server takes no jobs, as it cannot use their folder; its log says why"
            if chosen is not None:
                raise
            _log.warning("no jobs: %s", error)

    def work(self) -> None:
        """Speak jobs from now on. Without the default bundle, all jobs wait for a server that has it."""
        if self._opened is not None:
            self._working = asyncio.ensure_future(self._work(self._opened))

    async def close(self) -> None:
        """Interrupt the job that is being spoken, and leave the folder. Jobs go on with the next server."""
        if self._working is not None:
            self._working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._working
        await self._stop()
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    async def submit(self, request: Request, asked: SpeechRequest) -> Job:
        """A new job of the request's key; none if the client leaves before the text has been read.

        Raises what `VoxCPM.plan` raises, and ApiError for too many jobs (429, 503), a full disk (507) and a client
        that has left (499).
        """
        store, owner = self._store, request.state.owner
        planned = await unless_gone(request, self._planned(asked))
        add = partial(self._add, store, owner, asked, planned)
        try:
            async with self._submitting:
                await self._delete_old(store)
                await run_in_threadpool(self._check_room, store, owner, await self._bundles.named())
                job = await run_in_threadpool(add)
        except (OSError, sqlite3.Error, InputError) as error:
            raise unstored("", error) from None
        self._wake.set()
        return job

    async def show(self, owner: str, id_: str) -> Job:
        """A job of that owner. Raises ApiError (404) if there is none."""
        job = await run_in_threadpool(self._store.get, owner, id_)
        if job is None:
            raise ApiError(404, f"there is no job {id_!r}; GET /v1/audio/jobs lists them", param="id")
        return job

    async def list(self, owner: str) -> list[Job]:
        """The jobs of an owner, the latest first."""
        return await run_in_threadpool(self._store.of_owner, owner)

    async def audio(self, owner: str, id_: str) -> Path:
        """The file of a job's speech. Raises ApiError: 404 for no such job, 409 for one that is not done."""
        job = await self.show(owner, id_)
        if job.state != DONE:
            raise ApiError(
                409, f"the job is {job.state}; its speech can be fetched when it is done", code="job_not_done"
            )
        return self._store.path(id_) / job.audio_name

    async def delete(self, owner: str, id_: str) -> None:
        """Cancel a job and delete it. Raises ApiError (404) if there is none."""
        job = await self.show(owner, id_)
        await self._remove(self._store, job.id)

    def error_of(self, job: Job) -> dict[str, Any] | None:
        """OpenAI's error of a job: why it failed, or what it waits for, other than its turn; otherwise None."""
        model = job.asked["model"]
        if job.state == QUEUED and not self._bundles.may_serve(model):
            reason = f"waiting for model {model}, which this server does not serve"
            return dict(ApiError(503, reason, param="model", code=MODEL_UNAVAILABLE).document["error"])
        return None if job.error is None else dict(json.loads(job.error))

    def progress_of(self, job: Job) -> RunningJob | None:
        """The progress of a job, if it is being spoken now."""
        return self._running if self._running is not None and self._running.job.id == job.id else None

    @property
    def _store(self) -> JobStore:
        if self._opened is None:
            raise ApiError(501, self._why_not, code="no_jobs")
        return self._opened

    async def _planned(self, asked: SpeechRequest) -> _PlannedJob:
        """Read and check all that a job asks for. Raises ApiError, and what `VoxCPM.plan` raises."""
        settings, cancel = self._settings, CancelToken()
        with await self._bundles.lease(asked.model) as served:
            Encoder(asked.response_format, served.speeches.sample_rate, asked.sample_rate, asked.speed)
            named = self.service.voices.named
            voice = await run_in_threadpool(named, asked.voice_name, served.built_in_voices)
            given = await run_in_threadpool(
                asked.arguments, settings, served, settings.max_job_characters, voice
            )
            async with self._planning:
                plan = await cancelled_with(cancel, partial(served.tts.plan, **given, cancel=cancel))
        return _PlannedJob(voice, plan.randomness.seed or 0, len(plan.segments))

    def _check_room(self, store: JobStore, owner: str, models: Collection[str]) -> None:
        # Jobs that wait for a model that is no longer served do not count, but their size does.
        every, own = store.counts(owner, models)
        for count, maximum, status, whose in (
            (every, self._settings.max_jobs, 503, ""),
            (own, self._max_per_key, 429, " of this key"),
        ):
            if count >= maximum:
                raise ApiError(
                    status,
                    f"{count} jobs{whose} are stored, the most that may be; delete one",
                    code="too_many_jobs",
                    headers={"Retry-After": _RETRY_SECONDS},
                )
        check_size(store, self._settings)

    def _add(self, store: JobStore, owner: str, asked: SpeechRequest, planned: _PlannedJob) -> Job:
        folder = store.new_folder()
        try:
            for field, content in asked.recordings():
                with appearing(folder / field) as file:
                    file.write(content)
            if planned.voice is not None:
                # The voice may be deleted or replaced before the job's turn comes.
                planned.voice.save(folder / VOICE_FILE)
            request = asked.model_dump(exclude={*RECORDINGS, *(asked.model_extra or ())}, exclude_none=True)
            return store.add(folder, owner, request, planned.seed, planned.segments)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    async def _work(self, store: JobStore) -> None:
        while True:
            self._wake.clear()
            try:
                await self._delete_old(store)
                speaking = await self._begun(store)
            except (OSError, sqlite3.Error) as error:
                _log.error("jobs: %s", error)
                await asyncio.sleep(_PATIENCE_SECONDS)
                continue
            if speaking is None:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._idle_seconds())
                continue
            # The task raises only if it was cancelled.
            await asyncio.wait({speaking})
            self._running = None

    async def _begun(self, store: JobStore) -> asyncio.Task[None] | None:
        """Begin the next job; None if none waits."""
        now = time.monotonic()
        paused = [id_ for id_, (until, _) in self._pauses.items() if until > now]
        async with self._choosing:
            job = await run_in_threadpool(store.next, self._bundles.names, paused)
            if job is None:
                return None
            self._running = RunningJob(job)
            self._speaking = asyncio.ensure_future(self._speak(store, self._running))
            return self._speaking

    def _idle_seconds(self) -> float:
        """Seconds until the first paused job is retried, or old jobs are deleted."""
        now = time.monotonic()
        return min((until - now for until, _ in self._pauses.values() if until > now), default=_IDLE_SECONDS)

    def _pause(self, id_: str) -> None:
        """Have a job wait from now on, twice as long as the last time."""
        _, last = self._pauses.get(id_, (0.0, FIRST_PAUSE / 2))
        pause = min(last * 2, MAX_PAUSE)
        self._pauses[id_] = (time.monotonic() + pause, pause)

    async def _stop(self) -> None:
        """Interrupt the job that is being spoken, and wait until it has ended."""
        if (speaking := self._speaking) is not None:
            speaking.cancel()
            await asyncio.wait({speaking})

    async def _remove(self, store: JobStore, id_: str) -> None:
        async with self._choosing:
            # First, so that it is not begun again.
            await run_in_threadpool(store.forget, id_)
            self._pauses.pop(id_, None)
            runs = self._running is not None and self._running.job.id == id_
        if runs:
            await self._stop()
        await run_in_threadpool(store.remove, id_)

    async def _delete_old(self, store: JobStore) -> None:
        before = time.time() - self._settings.jobs_keep_days * _DAY
        for id_ in await run_in_threadpool(store.ended_before, before):
            await run_in_threadpool(store.remove, id_)

    async def _speak(self, store: JobStore, running: RunningJob) -> None:
        """Speak a job to its end. Errors become the job's error; only cancellation is raised."""
        job = running.job
        try:
            size = await run_in_threadpool(finished_size, store, running)
            if size is None:
                _check_starts(job)
                size = await self._spoken(store, running)

            def done() -> None:
                ended = {"state": DONE, "ended": time.time(), "bytes": size, "error": None}
                store.change(job.id, **ended, audio_seconds=running.audio_seconds)
                discard_segments(store, job)

            await to_its_end(run_in_threadpool(done))
            self._pauses.pop(job.id, None)
            self._ended.labels(DONE).inc()
        except (asyncio.CancelledError, Cancelled):
            # The server ends, or the job is deleted: not a failed attempt.
            queued = partial(store.change, job.id, state=QUEUED, starts=running.starts_before)
            with contextlib.suppress(sqlite3.Error):
                await to_its_end(run_in_threadpool(queued))
            raise asyncio.CancelledError from None
        except Exception as error:  # noqa: BLE001 - shown as the job's error
            disk_failed = isinstance(error, OSError | sqlite3.Error)
            answer = unstored(job.id, error) if disk_failed else as_api_error(error)
            message = json.dumps(answer.document["error"])
            if disk_failed and running.starts < MAX_STARTS:
                # The disk may have failed once only, and hours of speech are saved.
                await self._postpone(store, job, message, running.starts)
            elif isinstance(answer, NoRoomError) or answer.code in _TRANSIENT:
                await self._postpone(store, job, message, running.starts_before)
            else:
                await self._fail(store, job, message)

    async def _fail(self, store: JobStore, job: Job, message: str) -> None:
        self._pauses.pop(job.id, None)

        def failed() -> None:
            # First make room: that may be what is missing.
            discard_segments(store, job)
            store.change(job.id, state=FAILED, ended=time.time(), error=message)

        try:
            await to_its_end(run_in_threadpool(failed))
            self._ended.labels(FAILED).inc()
        except sqlite3.Error as error:
            # Its row still says that it runs, so it is retried.
            self._pause(job.id)
            _log.error("job %s has failed, which cannot be stored (%s)", job.id, error)

    async def _postpone(self, store: JobStore, job: Job, message: str, starts: int) -> None:
        """Retry a job later, from its finished segments; other jobs are spoken meanwhile."""
        self._pause(job.id)
        queued = partial(store.change, job.id, state=QUEUED, starts=starts, error=message)
        try:
            await to_its_end(run_in_threadpool(queued))
        except sqlite3.Error as error:
            _log.error("job %s waits, which cannot be stored (%s)", job.id, error)

    async def _spoken(self, store: JobStore, running: RunningJob) -> int:
        """Speak a job, and return the size of its file in bytes."""
        with await self._bundles.lease(running.job.asked["model"]) as served:
            queue = served.speeches.queue
            turn = JobTurn(queue, await queue.enter_last(), running.cancel)
            work = partial(spoken_job, store, running, served, self._settings, turn)
            try:
                return await cancelled_with(running.cancel, work)
            finally:
                turn.leave()


def unstored(id_: str, error: Exception) -> ApiError:
    """The error of a full or broken disk. Its paths are logged, but not sent to clients."""
    _log.error("job %s: %s", id_ or "that is new", error)
    return ApiError(507, "the server could not store or read the job; its log says why")


def _check_starts(job: Job) -> None:
    if job.starts > MAX_STARTS:
        raise ApiError(500, f"it was begun {MAX_STARTS} times without a finished segment, and is given up")
