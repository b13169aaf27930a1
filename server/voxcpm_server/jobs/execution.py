"""Jobs: long texts that are spoken in the background, one after another, and wait on disk to be fetched.

A job takes the last line of the queue: it speaks when a turn is free that no request waits for, and gives the turn up
when one does: at its next patch, or on a bundle for a batch at the end of its segment. Its finished segments are saved,
and a job that was interrupted goes on behind them.
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
from typing import Any

from prometheus_client import Counter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from voxcpm_constants.user_folders import jobs_folder, user_path
from voxcpm_runtime import Cancelled, InputError
from voxcpm_server.errors import MODEL_UNAVAILABLE, ApiError, as_api_error
from voxcpm_server.jobs.pauses import Pauses
from voxcpm_server.jobs.planning import PlannedJob, Planner
from voxcpm_server.jobs.speaking import (
    VOICE_FILE,
    JobTurn,
    RunningJob,
    check_size,
    discard_segments,
    finished_size,
    spoken_job,
)
from voxcpm_server.jobs.store import (
    DONE,
    FAILED,
    MAX_STARTS,
    QUEUED,
    Job,
    JobStore,
    appearing,
)
from voxcpm_server.rooms import Room
from voxcpm_server.speech.served_bundles import NoRoomError, cancelled_with, to_its_end
from voxcpm_server.speech.service import Service
from voxcpm_server.speech.speech_requests import RECORDINGS, SpeechRequest
from voxcpm_server.speech.streaming import unless_gone

_log = logging.getLogger("voxcpm_server")
_DAY = 86_400
# Between two looks for jobs that are old, and after an error of the disk.
_IDLE_SECONDS = 600
_PATIENCE_SECONDS = 5
# What may be there again later. A job waits for it, longer after each try.
_AWAITED = {MODEL_UNAVAILABLE, "device_unavailable", "loading"}
# After a refusal: no job makes room sooner than it is deleted.
_RETRY_SECONDS = "60"


class Jobs(Room):
    """The jobs of a server. It belongs to one event loop."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._settings = settings = service.settings
        self._bundles = service.bundles
        self._planner = Planner(settings, service.bundles, service.voices)
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
        self._pauses = Pauses()
        self._submitting = asyncio.Lock()
        # A job is not deleted between being chosen and being known as the one that runs.
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
        try:
            self._opened = await run_in_threadpool(JobStore, _folder(chosen))
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
        """A new job of the key that a request came with; none if the client leaves before its text was read.

        Raises what `Planner.planned` raises, and ApiError for too many jobs (429, 503), a full disk (507) and a client
        that has left (499).
        """
        store, owner = self._store, request.state.owner
        planned = await unless_gone(request, self._planner.planned(owner, asked))
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
        """OpenAI's error of a job: why it failed, or what it waits for beside its turn; None for any other."""
        model = job.asked["model"]
        if job.state == QUEUED and not self._bundles.may_serve(model):
            reason = f"waiting for model {model}, which this server does not serve"
            return dict(ApiError(503, reason, param="model", code=MODEL_UNAVAILABLE).document["error"])
        return None if job.error is None else dict(json.loads(job.error))

    def progress_of(self, job: Job) -> RunningJob | None:
        """How far a job is by now, if it is the one that is being spoken."""
        return self._running if self._running is not None and self._running.job.id == job.id else None

    @property
    def _store(self) -> JobStore:
        if self._opened is None:
            raise ApiError(501, self._why_not, code="no_jobs")
        return self._opened

    def _check_room(self, store: JobStore, owner: str, models: Collection[str]) -> None:
        # What waits for a model that is not served any more takes no place of others; its size counts.
        every, own = store.counts(owner, models)
        if every >= self._settings.max_jobs:
            raise ApiError(
                503,
                f"{every} jobs are stored, the most that may be; delete one",
                code="too_many_jobs",
                headers={"Retry-After": _RETRY_SECONDS},
            )
        if own >= self._max_per_key:
            raise ApiError(
                429,
                f"{own} jobs of this key are stored, the most that may be; delete one",
                code="too_many_jobs",
                headers={"Retry-After": _RETRY_SECONDS},
            )
        check_size(store, self._settings)

    def _add(self, store: JobStore, owner: str, asked: SpeechRequest, planned: PlannedJob) -> Job:
        folder = store.new_folder()
        try:
            for field, content in asked.recordings():
                with appearing(folder / field) as file:
                    file.write(content)
            if planned.voice is not None:
                # As it is now: it may be deleted or made anew before the job's turn comes.
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
                    await asyncio.wait_for(self._wake.wait(), min(_IDLE_SECONDS, self._pauses.shortest))
                continue
            # It ends with an error of its own only if it was cancelled.
            await asyncio.wait({speaking})
            self._running = None

    async def _begun(self, store: JobStore) -> asyncio.Task[None] | None:
        """The next job, which is begun by that; None if none waits."""
        async with self._choosing:
            # The names of all are known: the default bundle is loaded.
            job = await run_in_threadpool(store.next, self._bundles.names, self._pauses.waiting)
            if job is None:
                return None
            self._running = RunningJob(job)
            self._speaking = asyncio.ensure_future(self._speak(store, self._running))
            return self._speaking

    async def _stop(self) -> None:
        """Interrupt the job that is being spoken, and wait until it has ended."""
        if (speaking := self._speaking) is not None:
            speaking.cancel()
            await asyncio.wait({speaking})

    async def _remove(self, store: JobStore, id_: str) -> None:
        async with self._choosing:
            # First of all, so that it is not begun again.
            await run_in_threadpool(store.forget, id_)
            self._pauses.end(id_)
            runs = self._running is not None and self._running.job.id == id_
        if runs:
            await self._stop()
        await run_in_threadpool(store.remove, id_)

    async def _delete_old(self, store: JobStore) -> None:
        before = time.time() - self._settings.jobs_keep_days * _DAY
        for id_ in await run_in_threadpool(store.ended_before, before):
            await run_in_threadpool(store.remove, id_)

    async def _speak(self, store: JobStore, running: RunningJob) -> None:
        """Speak a job to its end. What goes wrong is the job's error; only a cancellation comes out."""
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
            self._pauses.end(job.id)
            self._ended.labels(DONE).inc()
        except (asyncio.CancelledError, Cancelled):
            # The server ends, or the job is deleted. This is no attempt that has failed.
            queued = partial(store.change, job.id, state=QUEUED, starts=running.starts_before)
            with contextlib.suppress(sqlite3.Error):
                await to_its_end(run_in_threadpool(queued))
            raise asyncio.CancelledError from None
        except Exception as error:  # noqa: BLE001 - told as the job's error
            refused = isinstance(error, OSError | sqlite3.Error)
            answered = unstored(job.id, error) if refused else as_api_error(error)
            told = json.dumps(answered.document["error"])
            # Once may be once only, and hours of speech are saved.
            if refused and running.starts < MAX_STARTS:
                await self._postpone(store, job, told, running.starts)
                return
            if isinstance(answered, NoRoomError) or answered.code in _AWAITED:
                await self._postpone(store, job, told, running.starts_before)
                return
            self._pauses.end(job.id)

            def failed() -> None:
                # Room, above all if that was missing.
                discard_segments(store, job)
                store.change(job.id, state=FAILED, ended=time.time(), error=told)

            try:
                await to_its_end(run_in_threadpool(failed))
                self._ended.labels(FAILED).inc()
            except sqlite3.Error as unwritten:
                # Its row says that it runs: it is tried again.
                self._pauses.lengthen(job.id)
                _log.error("job %s has failed, which cannot be stored (%s)", job.id, unwritten)

    async def _postpone(self, store: JobStore, job: Job, told: str, starts: int) -> None:
        """Have a job wait with its finished segments, and others go on. told: why, as its error."""
        self._pauses.lengthen(job.id)
        queued = partial(store.change, job.id, state=QUEUED, starts=starts, error=told)
        try:
            await to_its_end(run_in_threadpool(queued))
        except sqlite3.Error as unwritten:
            _log.error("job %s waits, which cannot be stored (%s)", job.id, unwritten)

    async def _spoken(self, store: JobStore, running: RunningJob) -> int:
        """Bytes of the file of the speech, which is then there."""
        with await self._bundles.lease(running.job.asked["model"]) as served:
            queue = served.speeches.queue
            turn = JobTurn(queue.enter_last, await queue.enter_last(), running.cancel)
            work = partial(spoken_job, store, running, served, self._settings, turn)
            try:
                return await cancelled_with(running.cancel, work)
            finally:
                turn.leave()


def unstored(id_: str, error: Exception) -> ApiError:
    """The error of a disk that is full or broken. Clients need not know its paths."""
    _log.error("job %s: %s", id_ or "that is new", error)
    return ApiError(507, "the server could not store or read the job; its log says why")


def _folder(chosen: Path | None) -> Path:
    return jobs_folder() if chosen is None else user_path(chosen).absolute()


def _check_starts(job: Job) -> None:
    if job.starts > MAX_STARTS:
        raise ApiError(500, f"it was begun {MAX_STARTS} times without a finished segment, and is given up")
