"""Jobs: long texts spoken in the background, one at a time, and stored for download.

A job has lower priority than any request: it runs while no request waits for a turn, and yields before the next call of
a step model when one does. Finished segments are saved, and an interrupted job resumes after them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
from starlette.concurrency import run_in_threadpool

from voxcpm_constants.user_folders import jobs_folder, user_path
from voxcpm_runtime import Cancelled, CancelToken, InputError, Plan, Progress, Voice
from voxcpm_runtime.speech.results import SpokenSegment
from voxcpm_runtime.speech.saved_segments import SavedSegments
from voxcpm_runtime.storage.atomic_file import atomic_file
from voxcpm_runtime.words.files import timestamps_file
from voxcpm_runtime.words.words import missed_words
from voxcpm_server.errors import MODEL_UNAVAILABLE, ApiError, as_api_error, check_capacity, speech_too_long
from voxcpm_server.jobs.options import JobSettings
from voxcpm_server.jobs.store import (
    DONE,
    FAILED,
    MAX_STARTS,
    QUEUED,
    SUBTITLES_FILE,
    VOICE_FILE,
    Job,
    JobStore,
)
from voxcpm_server.rooms import Room
from voxcpm_server.speech.served_bundles import ServedBundle, run_in_dedicated_thread
from voxcpm_server.speech.service import Service
from voxcpm_server.speech.speaking import cancel_and_wait
from voxcpm_server.speech.speech_requests import RECORDINGS, SpeechRequest

_log = logging.getLogger("voxcpm_server")
_DAY = 86_400
_IDLE_SECONDS = 600  # between deletions of old jobs
_POLL_SECONDS = 0.05
_PIECE_SECONDS = 10  # speech to encode at a time
# Transient errors, after which the job is retried.
_TRANSIENT = {MODEL_UNAVAILABLE, "loading"}
_TOO_MANY = "too many jobs: {}{} are stored; delete one"
JOB_RETRY_SECONDS = 60.0


class _JobToken(CancelToken):
    """Cancels a job. While it is spoken, requests pass before its next call of a step model."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting = threading.Lock()
        self.let_pass: Callable[[], None] = lambda: None

    def check(self) -> None:
        """Raises Cancelled after `cancel`. Several segments may be spoken at once: then all wait for the first."""
        with self._waiting:
            super().check()
            self.let_pass()


@dataclass
class _RunningJob:
    job: Job
    starts: int  # starts since its last finished segment, including this one
    segments_done: int = 0
    audio_seconds: float = 0.0
    remaining_seconds: float | None = None
    cancel: _JobToken = field(default_factory=_JobToken)


class Jobs(Room):
    """The server's jobs. Bound to one event loop."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._settings = cast("JobSettings", service.settings)
        self._bundles = service.bundles
        self._outcomes = service.metrics.counter("jobs", "Ended jobs by outcome: done or failed.", "outcome")
        self._opened: JobStore | None = None
        self._disabled_reason = "jobs are disabled (--max-jobs is 0)"
        self._wake = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._current: asyncio.Task[None] | None = None
        self.running: _RunningJob | None = None
        self._retry_at: dict[str, float] = {}  # `time.monotonic`, by job
        self._adding = asyncio.Lock()

    def about(self) -> dict[str, Any]:
        """Whether jobs are enabled."""
        return {"jobs": self._opened is not None}

    def limits(self) -> dict[str, Any]:
        """Maximum text of a job."""
        return {"job_characters": self._settings.max_job_characters}

    @property
    def store(self) -> JobStore:
        """The jobs on disk. Raises ApiError (501) if jobs are disabled."""
        if self._opened is None:
            raise ApiError(501, self._disabled_reason, code="no_jobs")
        return self._opened

    async def open(self) -> None:
        """Open the folder. Raises InputError if it was configured and fails; if the default fails, disables jobs."""
        if not self._settings.max_jobs:
            return
        chosen = self._settings.jobs_folder
        folder = jobs_folder() if chosen is None else user_path(chosen).absolute()
        try:
            self._opened = await run_in_threadpool(JobStore, folder)
        except InputError as error:
            if chosen is not None:
                raise
            self._disabled_reason = "jobs are disabled, as the server cannot use its jobs folder; see its log"
            _log.warning("jobs are disabled: %s", error)

    def start(self) -> None:
        """Start speaking jobs, once the default bundle is loaded."""
        if self._opened is not None:
            self._worker = asyncio.ensure_future(self._run_worker(self._opened))

    async def close(self) -> None:
        """Interrupt the running job, and release the folder. The next server resumes the job."""
        for task in filter(None, (self._worker, self._current)):
            await cancel_and_wait(task)
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    async def submit(self, owner: str, body: SpeechRequest) -> Job:
        """Queue a new job. Raises the same as `VoxCPM.plan`, and ApiError: 429 or 503 for too many jobs, 507."""
        store, settings, maximum = self.store, self._settings, self._settings.max_jobs
        fields = body.model_dump(exclude={*RECORDINGS, *(body.model_extra or ())}, exclude_none=True)
        with await self._bundles.lease(body.model) as served:
            voice, plan = await run_in_threadpool(self._plan, body, served)
            if body.model not in self._bundles.names:  # such as TTS-1
                fields["model"] = served.name

        def add() -> Job:
            self._delete_old(store)
            total, own = store.counts(owner)
            own_maximum = self.service.max_per_key(maximum)
            check_capacity((total, maximum), (own, own_maximum), _TOO_MANY, 60, "too_many_jobs")
            store.check_size(settings.max_jobs_megabytes)
            recordings, missed = dict(body.recordings()), _reported(plan)
            return store.add(owner, fields, plan.seed or 0, len(plan.segments), recordings, voice, missed)

        async with self._adding:
            try:
                job = await run_in_threadpool(add)
            except (OSError, sqlite3.Error, InputError) as error:
                raise storage_error("new", error) from None
        self._wake.set()
        return job

    async def delete(self, owner: str, id_: str) -> None:
        """Cancel and delete a job. Raises ApiError (404) for an unknown one."""
        store = self.store
        await run_in_threadpool(store.get, owner, id_)
        # Prevents a restart.
        self._retry_at[id_] = math.inf
        try:
            if self._current is not None and self.running is not None and self.running.job.id == id_:
                await cancel_and_wait(self._current)
            await run_in_threadpool(store.remove, id_)
        finally:
            self._retry_at.pop(id_, None)

    def error_of(self, job: Job) -> dict[str, Any] | None:
        """A job's error in OpenAI's format: why it failed or is blocked; None if neither."""
        model = job.fields["model"]
        # The default bundle's name may still be unknown.
        if job.state == QUEUED and self._bundles.default.name and model not in self._bundles.names:
            reason = f"waiting for model {model}, which this server does not serve"
            return dict(ApiError(503, reason, param="model", code=MODEL_UNAVAILABLE).document["error"])
        return None if job.error is None else dict(json.loads(job.error))

    def _plan(self, body: SpeechRequest, served: ServedBundle) -> tuple[Voice | None, Plan]:
        body.encoder(served.tts)
        voice = self.service.voices.named(body.voice_name, served.tts.built_in_voices)
        maximum = self._settings.max_job_characters
        plan = served.tts.plan_request(body.runtime_request(self.service, served, maximum, voice))
        return plan.voice if isinstance(plan.voice, Voice) else None, plan

    def _delete_old(self, store: JobStore) -> None:
        for id_ in store.ended_before(time.time() - self._settings.jobs_keep_days * _DAY):
            store.remove(id_)

    async def _run_worker(self, store: JobStore) -> None:
        while True:
            self._wake.clear()
            now = time.monotonic()
            # In place, as `delete` adds entries of its own.
            for id_ in [id_ for id_, at in self._retry_at.items() if at <= now]:
                del self._retry_at[id_]
            try:
                await run_in_threadpool(self._delete_old, store)
                # On the event loop, so that no job is deleted between selection and start.
                job = store.start_next(self._bundles.names, self._retry_at)
            except (OSError, sqlite3.Error) as error:
                _log.error("jobs: %s", error)
                await asyncio.sleep(JOB_RETRY_SECONDS)
                continue
            if job is not None:
                self.running = _RunningJob(job, job.starts)
                self._current = asyncio.ensure_future(self._run_job(store, self.running))
                await asyncio.wait({self._current})
                self.running = None
            else:
                seconds = min([*self._retry_at.values(), now + _IDLE_SECONDS]) - now
                with anyio.move_on_after(seconds):
                    await self._wake.wait()

    async def _run_job(self, store: JobStore, running: _RunningJob) -> None:
        id_, state, error, size, failures = running.job.id, QUEUED, None, 0, 0
        try:
            size, state = await self._speak(store, running), DONE
        except (asyncio.CancelledError, Cancelled):
            pass  # Shutdown, or the job was deleted.
        except (OSError, sqlite3.Error) as exception:
            error, failures = storage_error(id_, exception), 1
            # Retry, as disk errors may be transient and hours of speech are saved.
            state = QUEUED if running.starts < MAX_STARTS else FAILED
        except Exception as exception:  # noqa: BLE001 - shown as the job's error
            error = as_api_error(exception)
            state = QUEUED if error.code in _TRANSIENT else FAILED
        ended: dict[str, Any] = {"state": state, "error": error and json.dumps(error.document["error"])}
        if state == QUEUED:
            ended["starts"] = max(0, running.starts - 1 + failures)
        else:
            ended |= {"ended": time.time(), "bytes": size}
        while True:
            try:
                await run_in_threadpool(store.end, id_, **ended)
                break
            except sqlite3.Error as failure:
                # Other jobs could not start either. After a restart, the finished speech is found on disk.
                _log.error("job %s: cannot store its state %s (%s)", id_, state, failure)
                await asyncio.sleep(JOB_RETRY_SECONDS)
        if state != QUEUED:
            self._outcomes.labels(state).inc()
        elif error is not None:
            self._retry_at.setdefault(id_, time.monotonic() + JOB_RETRY_SECONDS)

    async def _speak(self, store: JobStore, running: _RunningJob) -> int:
        """Speak a job unless its speech exists already. Returns the size of its file in bytes."""
        job, loop, queue = running.job, asyncio.get_running_loop(), self.service.queue
        with contextlib.suppress(FileNotFoundError):
            # The last run finished, but could not store its state.
            return (store.path(job.id) / job.audio_name).stat().st_size
        if job.starts > MAX_STARTS:
            message = f"started {MAX_STARTS} times without finishing a segment; giving up"
            raise ApiError(500, message)
        with await self._bundles.lease(job.fields["model"]) as served:
            turn = await queue.enter_background()

            async def take_another_turn() -> None:
                nonlocal turn
                turn.leave()
                turn = await queue.enter_background()

            def yield_to_requests() -> None:  # on the job's thread
                if queue.has_requests:
                    waiting = asyncio.run_coroutine_threadsafe(take_another_turn(), loop)
                    while not waiting.done():
                        concurrent.futures.wait([waiting], _POLL_SECONDS)
                        if running.cancel.cancelled:
                            waiting.cancel()
                            raise Cancelled("the job was cancelled")

            running.cancel.let_pass = yield_to_requests
            work = partial(speak_job, store, running, served, self._settings, self.service)
            speaking = asyncio.ensure_future(run_in_dedicated_thread(work))
            # Retrieve the error: asyncio would log it for a job that is deleted.
            speaking.add_done_callback(lambda done: done.cancelled() or done.exception())
            try:
                return await asyncio.shield(speaking)
            finally:
                running.cancel.cancel()
                # The thread may still use the bundle. Two requests may cancel this wait.
                while not speaking.done():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait({speaking})
                turn.leave()


def _reported(plan: Plan, **missed: Any) -> str:
    return json.dumps({"warnings": plan.voice.faults if plan.voice else (), **missed})


def storage_error(id_: str, error: Exception) -> ApiError:
    """The error for a full or broken disk. Paths are logged, but not sent to clients."""
    _log.error("job %s: %s", id_, error)
    return ApiError(507, "the server could not store or read the job; see its log")


def speak_job(
    store: JobStore, running: _RunningJob, served: ServedBundle, settings: JobSettings, service: Service
) -> int:
    """Speak a job segment by segment into its folder, then into one file. Returns its size in bytes."""
    job, folder, tts = running.job, store.path(running.job.id), served.tts
    body = SpeechRequest.model_validate({**job.fields, "seed": job.seed})
    body.attach({name: (folder / name).read_bytes() for name in RECORDINGS if (folder / name).is_file()})
    with _input_errors_as_os_errors():
        # Without its path: no prefix is cached in the job's folder.
        stored = folder / VOICE_FILE
        voice = replace(Voice.load(stored), path=None) if stored.is_file() else None
    request = body.runtime_request(service, served, settings.max_job_characters, voice)

    def on_progress(progress: Progress) -> None:
        running.audio_seconds = progress.audio_seconds
        running.remaining_seconds = progress.remaining_seconds
        if running.audio_seconds > settings.max_job_audio_seconds:
            raise speech_too_long(settings.max_job_audio_seconds, "job")

    def on_saved() -> None:
        running.segments_done += 1
        running.starts = 0
        done, seconds = running.segments_done, running.audio_seconds
        store.change(job.id, segments_done=done, audio_seconds=seconds, starts=0)
        store.check_size(settings.max_jobs_megabytes)

    saved = _JobSegments(folder / job.audio_name, tts.bundle.digest, job.seed, on_saved)
    running.segments_done = saved.count
    running.audio_seconds = job.audio_seconds if saved.count else 0.0
    watched = replace(
        request, progress=on_progress, cancel=running.cancel, saved_segments=saved,
        parallel_segments=tts.bundle.manifest.sizes.together,
    )  # fmt: skip
    plan = tts.plan_request(watched)
    speech = tts.speak_plan(plan)
    running.audio_seconds = speech.audio_seconds
    # Before the file: once it exists, the job counts as finished, even if the server is killed.
    count = len(speech.segments)
    missed = _reported(plan, **missed_words(speech.words, speech.replaced))
    store.change(
        job.id, segments_done=count, segments=count, audio_seconds=speech.audio_seconds, missed=missed
    )
    encoder, piece = body.encoder(tts), _PIECE_SECONDS * tts.sample_rate
    with atomic_file(folder / SUBTITLES_FILE) as file:
        file.write(timestamps_file(encoder.heard(speech.words), ".srt", plan.text or ""))
    with atomic_file(folder / job.audio_name) as file:
        file.write(encoder.header())
        start = b""
        for at in range(0, len(speech.audio), piece):
            running.cancel.check()
            data = encoder.encode(speech.audio[at : at + piece])
            start = start or data
            file.write(data)
        last = encoder.finish()
        file.write(last)
        size = file.tell()
        file.seek(0)
        file.write(encoder.header(encoder.samples) or encoder.completed(start or last))
        file.flush()
        os.fsync(file.fileno())
    return size


@contextlib.contextmanager
def _input_errors_as_os_errors() -> Iterator[None]:
    """Convert InputError to OSError: these files are the server's, not the client's."""
    try:
        yield
    except InputError as error:
        raise OSError(str(error)) from None


class _JobSegments(SavedSegments):
    """Saved segments. on_saved: called after each one."""

    def __init__(self, output: Path, digest: str, seed: int, on_saved: Callable[[], None]) -> None:
        super().__init__(output, digest, seed, drawn=False)
        self._on_saved = on_saved

    def put(self, index: int, segment: SpokenSegment) -> None:
        with _input_errors_as_os_errors():
            super().put(index, segment)
        self._on_saved()
