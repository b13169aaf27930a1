"""Jobs over HTTP: long texts are submitted, watched, fetched and deleted."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, MalformedRangeHeader, RangeNotSatisfiable, Response
from starlette.types import Message, Receive, Scope, Send

from voxcpm_server.errors import CLIENT_GONE, DOCUMENTED, ApiError, ErrorDetail, ErrorDocument
from voxcpm_server.jobs.execution import Jobs, unstored
from voxcpm_server.jobs.store import QUEUED, Job
from voxcpm_server.speech.encoding import FORMATS
from voxcpm_server.speech.service import service_of
from voxcpm_server.speech.speech_requests import DOCUMENTED_BODY, SpeechRequest, speech_request

router = APIRouter(tags=["jobs"])
_MAX_LISTED = 1000
_LOCATION = {"Location": {"description": "The path of the job.", "schema": {"type": "string"}}}
_PART = {"Content-Range": {"description": "Which bytes, of how many.", "schema": {"type": "string"}}}


class JobsRoom(Jobs):
    """The door of this room."""

    routers = (router,)


def _jobs_of(request: Request) -> Jobs:
    return cast("Jobs", service_of(request).rooms["jobs"])


State = Literal["queued", "waiting", "running", "done", "failed"]
_WAITING: State = "waiting"


class JobDocument(BaseModel):
    """A job. Times are seconds since 1970."""

    id: str
    object: Literal["audio.job"] = "audio.job"
    state: State
    model: str
    voice: str
    response_format: str
    seed: int
    characters: int
    created_at: int
    started_at: int | None
    ended_at: int | None
    segments: int
    segments_done: int
    audio_seconds: float
    """Seconds of speech so far."""
    remaining_seconds: float | None
    """Estimated seconds of work left; None before the first segment of this run is finished."""
    bytes: int
    """Size of the audio; 0 before it is done."""
    error: ErrorDetail | None
    """Why it failed, or what it waits for."""


class JobList(BaseModel):
    """The jobs of a key, the latest first."""

    object: Literal["list"] = "list"
    data: list[JobDocument]
    has_more: bool


@router.post(
    "/audio/jobs",
    status_code=202,
    responses={**DOCUMENTED, 202: {"model": JobDocument, "headers": _LOCATION}},
    openapi_extra=DOCUMENTED_BODY,
)
async def submit_job(
    asked: Annotated[SpeechRequest, Depends(speech_request)], request: Request, response: Response
) -> JobDocument:
    """Have a long text spoken in the background. Of speech's fields, `stream` and `stream_format` have no effect."""
    jobs = _jobs_of(request)
    job = await jobs.submit(request, asked)
    response.headers["Location"] = f"/v1/audio/jobs/{job.id}"
    return _document(job, jobs)


@router.get("/audio/jobs", responses=DOCUMENTED)
async def list_jobs(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=_MAX_LISTED, description="Jobs that are listed at most.")] = 100,
    after: Annotated[str | None, Query(description="The last job of the list before this one.")] = None,
) -> JobList:
    """The jobs of this key."""
    jobs = _jobs_of(request)
    found = await jobs.list(request.state.owner)
    if after is not None:
        at = next((index for index, job in enumerate(found) if job.id == after), len(found))
        found = found[at + 1 :]
    return JobList(data=[_document(job, jobs) for job in found[:limit]], has_more=len(found) > limit)


@router.get("/audio/jobs/{id}", responses=DOCUMENTED)
async def show_job(id: str, request: Request) -> JobDocument:  # noqa: A002 - the name in the path
    """A job and its progress."""
    jobs = _jobs_of(request)
    return _document(await jobs.show(request.state.owner, id), jobs)


@router.get(
    "/audio/jobs/{id}/audio",
    response_class=Response,
    responses={
        **DOCUMENTED,
        200: {"content": {form.content_type: {} for form in FORMATS.values()}},
        206: {"description": "A part of it, as the header Range asks for.", "headers": _PART},
        416: {"model": ErrorDocument, "description": "There is no such part.", "headers": _PART},
    },
)
async def fetch_job(id: str, request: Request) -> Response:  # noqa: A002 - the name in the path
    """The speech of a job that is done."""
    jobs = _jobs_of(request)
    path = await jobs.audio(request.state.owner, id)
    content_type = FORMATS[path.suffix[1:]].content_type
    return await _Download.of(path, f"{id}{path.suffix}", content_type, jobs.service.settings.client_timeout)


@router.delete("/audio/jobs/{id}", responses=DOCUMENTED)
async def delete_job(id: str, request: Request) -> dict[str, Any]:  # noqa: A002 - the name in the path
    """Cancel a job and delete it with all its files."""
    await _jobs_of(request).delete(request.state.owner, id)
    return {"id": id, "object": "audio.job.deleted", "deleted": True}


class _Download(FileResponse):
    """A file, whole or in parts, which is not sent to a client that takes nothing for `patience` seconds."""

    patience: float

    @classmethod
    async def of(cls, path: Path, name: str, content_type: str, patience: float) -> _Download:
        """The answer. Raises ApiError: 404 for a file that has been deleted meanwhile, 507 if the disk refuses."""

        def opened() -> os.stat_result:
            # Starlette opens it only when it has said that the file comes.
            with path.open("rb") as file:
                return os.fstat(file.fileno())

        try:
            found = await run_in_threadpool(opened)
        except FileNotFoundError:
            raise ApiError(404, "the job's speech is not there any more") from None
        except OSError as error:
            raise unstored(path.parent.name, error) from None
        headers = {"Cache-Control": "no-store"}
        download = cls(path, headers=headers, media_type=content_type, filename=name, stat_result=found)
        download.patience = patience
        return download

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file."""

        async def taken(message: Message) -> None:
            try:
                await asyncio.wait_for(send(message), self.patience)
            except asyncio.TimeoutError:
                raise ApiError(CLIENT_GONE, f"the client took nothing for {self.patience:g} s") from None

        await super().__call__(scope, receive, taken)

    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        # Starlette would answer these itself, in plain text.
        try:
            return super()._parse_range_header(http_range, file_size)
        except MalformedRangeHeader:
            raise ApiError(400, "Range: expected one such as bytes=0-99", param="Range") from None
        except RangeNotSatisfiable:
            size = {"Content-Range": f"bytes */{file_size}"}
            raise ApiError(
                416, f"Range: the speech has {file_size} bytes", param="Range", headers=size
            ) from None


def _document(job: Job, jobs: Jobs) -> JobDocument:
    asked, running = job.asked, jobs.progress_of(job)
    voice, error = asked["voice"], jobs.error_of(job)
    # It is in the queue, but not called before what its error says is there.
    state = _WAITING if job.state == QUEUED and error is not None else cast("State", job.state)
    return JobDocument(
        id=job.id,
        state=state,
        model=asked["model"],
        voice=voice if isinstance(voice, str) else voice["id"],
        response_format=asked["response_format"],
        seed=job.seed,
        characters=len(asked["input"]),
        created_at=int(job.created),
        started_at=None if job.started is None else int(job.started),
        ended_at=None if job.ended is None else int(job.ended),
        segments=job.segments,
        segments_done=max(job.segments_done, len(running.seconds_of) if running else 0),
        audio_seconds=round(max(job.audio_seconds, running.audio_seconds if running else 0.0), 3),
        remaining_seconds=running.remaining_seconds if running else None,
        bytes=job.bytes,
        error=None if error is None else ErrorDetail(**error),
    )
