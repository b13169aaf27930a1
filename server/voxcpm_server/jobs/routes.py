"""Jobs over HTTP: long texts are submitted, watched, fetched and deleted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.responses import FileResponse, MalformedRangeHeader, RangeNotSatisfiable, Response
from starlette.types import Receive, Scope, Send

from voxcpm_server.api.openapi import DOCUMENTED, ErrorDetail, ErrorDocument, header
from voxcpm_server.errors import ApiError
from voxcpm_server.jobs.execution import Jobs, storage_error
from voxcpm_server.jobs.store import DONE, QUEUED, Job
from voxcpm_server.speech.encoding import FORMATS
from voxcpm_server.speech.service import service_of
from voxcpm_server.speech.speech_answers import sent_in_time
from voxcpm_server.speech.speech_requests import DOCUMENTED_BODY, SpeechRequest, speech_request

router = APIRouter(tags=["jobs"])
_MAX_LISTED = 1000
_PART = {"Content-Range": header("Which bytes, of how many.", "string")}
State = Literal["queued", "waiting", "running", "done", "failed"]


class JobsRoom(Jobs):
    """The door of this room."""

    routers = (router,)


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
    remaining_seconds: float | None
    """Estimated seconds of work left; None before the first segment of this run is finished."""
    bytes: int  # size of the audio; 0 before it is done
    error: ErrorDetail | None  # why it failed, or what it waits for


class JobList(BaseModel):
    """The jobs of a key, the latest first."""

    object: Literal["list"] = "list"
    data: list[JobDocument]
    has_more: bool


def _jobs_of(request: Request) -> Jobs:
    return cast("Jobs", service_of(request).rooms["jobs"])


TheJobs = Annotated[Jobs, Depends(_jobs_of)]


@router.post(
    "/audio/jobs",
    status_code=202,
    responses={
        **DOCUMENTED,
        202: {"model": JobDocument, "headers": {"Location": header("The path of the job.", "string")}},
    },
    openapi_extra=DOCUMENTED_BODY,
)
async def submit_job(
    asked: Annotated[SpeechRequest, Depends(speech_request)], request: Request, response: Response, jobs: TheJobs
) -> JobDocument:  # fmt: skip
    """Have a long text spoken in the background. Of speech's fields, `stream` and `stream_format` have no effect."""
    job = await jobs.submit(request.state.owner, asked)
    response.headers["Location"] = f"/v1/audio/jobs/{job.id}"
    return _document(job, jobs)


@router.get("/audio/jobs", responses=DOCUMENTED)
def list_jobs(
    request: Request,
    jobs: TheJobs,
    limit: Annotated[int, Query(ge=1, le=_MAX_LISTED, description="Jobs that are listed at most.")] = 100,
    after: Annotated[str | None, Query(description="The last job of the list before this one.")] = None,
) -> JobList:
    """The jobs of this key."""
    found = jobs.store.of_owner(request.state.owner)
    if after is not None:
        at = next((index for index, job in enumerate(found) if job.id == after), len(found))
        found = found[at + 1 :]
    return JobList(data=[_document(job, jobs) for job in found[:limit]], has_more=len(found) > limit)


@router.get("/audio/jobs/{id}", responses=DOCUMENTED)
def show_job(id: str, request: Request, jobs: TheJobs) -> JobDocument:  # noqa: A002 - the name in the path
    """A job and its progress."""
    return _document(jobs.store.get(request.state.owner, id), jobs)


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
def fetch_job(id: str, request: Request, jobs: TheJobs) -> Response:  # noqa: A002 - the name in the path
    """The speech of a job that is done."""
    job = jobs.store.get(request.state.owner, id)
    if job.state != DONE:
        message = f"the job is {job.state}; its speech can be fetched when it is done"
        raise ApiError(409, message, code="job_not_done")
    path = jobs.store.path(id) / job.audio_name
    try:
        status = path.stat()
    except FileNotFoundError:
        raise ApiError(404, "the job's speech is not there any more") from None
    except OSError as error:
        raise storage_error(id, error) from None
    content_type, headers = FORMATS[job.asked["response_format"]].content_type, {"Cache-Control": "no-store"}
    download = _Download(path, 200, headers, content_type, filename=f"{id}{path.suffix}", stat_result=status)
    download.patience = jobs.service.settings.client_timeout
    return download


@router.delete("/audio/jobs/{id}", responses=DOCUMENTED)
async def delete_job(id: str, request: Request, jobs: TheJobs) -> dict[str, Any]:  # noqa: A002 - the name in the path
    """Cancel a job and delete it with all its files."""
    await jobs.delete(request.state.owner, id)
    return {"id": id, "object": "audio.job.deleted", "deleted": True}


class _Download(FileResponse):
    """A file, whole or in parts, which is not sent to a client that takes nothing for `patience` seconds."""

    patience: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, sent_in_time(send, self.patience))

    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        # Starlette would answer these errors itself, in plain text.
        try:
            return super()._parse_range_header(http_range, file_size)
        except MalformedRangeHeader:
            raise ApiError(400, "Range: expected one such as bytes=0-99", param="Range") from None
        except RangeNotSatisfiable:
            message = f"Range: the speech has {file_size} bytes"
            headers = {"Content-Range": f"bytes */{file_size}"}
            raise ApiError(416, message, param="Range", headers=headers) from None


def _document(job: Job, jobs: Jobs) -> JobDocument:
    asked, error = job.asked, jobs.error_of(job)
    document = asked | asdict(job) | {
        # It is queued, but not started before what its error says is there.
        "state": "waiting" if job.state == QUEUED and error is not None else job.state,
        "voice": asked["voice"] if isinstance(asked["voice"], str) else asked["voice"]["id"],
        "characters": len(asked["input"]),
        "created_at": int(job.created),
        "started_at": job.started and int(job.started),
        "ended_at": job.ended and int(job.ended),
        "remaining_seconds": None,
        "error": error,
    }  # fmt: skip
    if (running := jobs.running) is not None and running.job.id == job.id:
        for name in ("segments_done", "audio_seconds"):
            document[name] = max(document[name], getattr(running, name))
        document["remaining_seconds"] = running.remaining_seconds
    return JobDocument(**document | {"audio_seconds": round(document["audio_seconds"], 3)})
