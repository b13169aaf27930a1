"""HTTP routes of jobs: submit, list, show, download, delete."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.responses import FileResponse, MalformedRangeHeader, RangeNotSatisfiable, Response
from starlette.types import Receive, Scope, Send

from voxcpm_server.api.openapi import ERROR_RESPONSES, ErrorDetail, ErrorDocument, header
from voxcpm_server.errors import ApiError
from voxcpm_server.jobs.execution import Jobs, storage_error
from voxcpm_server.jobs.store import DONE, QUEUED, SUBTITLES_FILE, Job
from voxcpm_server.speech.encoding import FORMATS
from voxcpm_server.speech.speech_requests import REQUEST_BODY, SpeechRequest, speech_request
from voxcpm_server.speech.speech_responses import with_send_timeout

router = APIRouter(tags=["jobs"])
_MAX_LISTED = 1000
_EXCERPT_CHARACTERS = 120
_SUBTITLES = "application/x-subrip"
_PART = {"Content-Range": header("Byte range and total size.", "string")}


class JobsRoom(Jobs):
    """Entry point of this room."""

    routers = (router,)


class JobDocument(BaseModel):
    """A job. Times are Unix timestamps."""

    id: str
    object: Literal["audio.job"] = "audio.job"
    state: Literal["queued", "waiting", "running", "done", "failed"]
    model: str
    voice: str
    response_format: str
    seed: int
    characters: int
    excerpt: str  # the beginning of its text
    created_at: int
    started_at: int | None
    ended_at: int | None
    segments: int
    segments_done: int
    audio_seconds: float
    remaining_seconds: float | None
    """Estimated seconds of work left; None until the first segment of this run is finished."""
    bytes: int  # size of the audio; 0 until it is done
    warnings: list[str] = []  # what is wrong with its recordings
    replaced: str = ""  # characters that the voice cannot say
    unsaid: list[dict[str, str | int]] = []  # each a word and its place in the text
    repeated: list[dict[str, str | int]] = []
    error: ErrorDetail | None  # why it failed, or what it waits for


class JobList(BaseModel):
    """A key's jobs, latest first."""

    object: Literal["list"] = "list"
    data: list[JobDocument]
    has_more: bool


def _jobs_of(request: Request) -> Jobs:
    return cast("Jobs", request.app.state.rooms["jobs"])


TheJobs = Annotated[Jobs, Depends(_jobs_of)]


@router.post(
    "/audio/jobs",
    status_code=202,
    responses={
        **ERROR_RESPONSES,
        202: {"model": JobDocument, "headers": {"Location": header("Path of the job.", "string")}},
    },
    openapi_extra=REQUEST_BODY,
)
async def submit_job(
    body: Annotated[SpeechRequest, Depends(speech_request)], request: Request, response: Response, jobs: TheJobs
) -> JobDocument:  # fmt: skip
    """Speak a long text in the background. The fields `stream` and `stream_format` have no effect."""
    job = await jobs.submit(request.state.owner, body)
    # Relative, since a proxy may add a prefix to the path.
    ends_in_slash = request.scope.get("raw_path", b"").endswith(b"/")
    response.headers["Location"] = job.id if ends_in_slash else f"jobs/{job.id}"
    return _document(job, jobs)


@router.get("/audio/jobs", responses=ERROR_RESPONSES)
def list_jobs(
    request: Request,
    jobs: TheJobs,
    limit: Annotated[int, Query(ge=1, le=_MAX_LISTED, description="Maximum jobs per page.")] = 100,
    after: Annotated[str | None, Query(description="Id of the last job on the previous page.")] = None,
) -> JobList:
    """List the jobs of this key, latest first."""
    found = jobs.store.for_owner(request.state.owner)
    if after is not None:
        at = next((index for index, job in enumerate(found) if job.id == after), len(found))
        found = found[at + 1 :]
    return JobList(data=[_document(job, jobs) for job in found[:limit]], has_more=len(found) > limit)


@router.get("/audio/jobs/{id}", responses=ERROR_RESPONSES)
def show_job(id: str, request: Request, jobs: TheJobs) -> JobDocument:  # noqa: A002 - the name in the path
    """Show a job and its progress."""
    return _document(jobs.store.get(request.state.owner, id), jobs)


@router.get(
    "/audio/jobs/{id}/audio",
    response_class=Response,
    responses={
        **ERROR_RESPONSES,
        200: {"content": {form.content_type: {} for form in FORMATS.values()}},
        206: {"description": "The requested byte range.", "headers": _PART},
        416: {"model": ErrorDocument, "description": "Range not satisfiable.", "headers": _PART},
    },
)
def fetch_job(id: str, request: Request, jobs: TheJobs) -> Response:  # noqa: A002 - the name in the path
    """Download the speech of a finished job."""
    job = _finished(id, request, jobs)
    return _download(job, job.audio_name, FORMATS[job.fields["response_format"]].content_type, jobs)


@router.get(
    "/audio/jobs/{id}/subtitles",
    response_class=Response,
    responses={**ERROR_RESPONSES, 200: {"content": {_SUBTITLES: {}}}},
)
def fetch_subtitles(id: str, request: Request, jobs: TheJobs) -> Response:  # noqa: A002 - the name in the path
    """Download the subtitles of a finished job, as SRT."""
    return _download(_finished(id, request, jobs), SUBTITLES_FILE, _SUBTITLES, jobs)


def _finished(id_: str, request: Request, jobs: Jobs) -> Job:
    job = jobs.store.get(request.state.owner, id_)
    if job.state != DONE:
        message = f"the job is {job.state}; its speech is available when it is done"
        raise ApiError(409, message, code="job_not_done")
    return job


def _download(job: Job, name: str, content_type: str, jobs: Jobs) -> Response:
    path = jobs.store.path(job.id) / name
    try:
        status = path.stat()
    except FileNotFoundError:
        raise ApiError(404, "the job's speech no longer exists") from None
    except OSError as error:
        raise storage_error(job.id, error) from None
    headers, filename = {"Cache-Control": "no-store"}, f"{job.id}{path.suffix}"
    download = _Download(path, 200, headers, content_type, filename=filename, stat_result=status)
    download.patience = jobs.service.settings.client_timeout
    return download


@router.delete("/audio/jobs/{id}", responses=ERROR_RESPONSES)
async def delete_job(id: str, request: Request, jobs: TheJobs) -> dict[str, Any]:  # noqa: A002 - the name in the path
    """Cancel a job and delete all its files."""
    await jobs.delete(request.state.owner, id)
    return {"id": id, "object": "audio.job.deleted", "deleted": True}


class _Download(FileResponse):
    """A file response with byte ranges, aborted if the client reads nothing for `patience` seconds."""

    patience: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, with_send_timeout(send, self.patience))

    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        # Starlette itself would respond in plain text.
        try:
            return super()._parse_range_header(http_range, file_size)
        except MalformedRangeHeader:
            raise ApiError(400, "Range: expected a range such as bytes=0-99", param="Range") from None
        except RangeNotSatisfiable:
            message = f"Range: the speech has {file_size} bytes"
            headers = {"Content-Range": f"bytes */{file_size}"}
            raise ApiError(416, message, param="Range", headers=headers) from None


def _document(job: Job, jobs: Jobs) -> JobDocument:
    fields, error = job.fields, jobs.error_of(job)
    document = fields | asdict(job) | {
        # Queued, but blocked by what its error reports.
        "state": "waiting" if job.state == QUEUED and error is not None else job.state,
        "voice": fields["voice"] if isinstance(fields["voice"], str) else fields["voice"]["id"],
        "characters": len(fields["input"]),
        "excerpt": fields["input"][:_EXCERPT_CHARACTERS],
        "created_at": int(job.created),
        "started_at": job.started and int(job.started),
        "ended_at": job.ended and int(job.ended),
        "remaining_seconds": None,
        "error": error,
        **json.loads(job.missed or "{}"),
    }  # fmt: skip
    if (running := jobs.running) is not None and running.job.id == job.id:
        for name in ("segments_done", "audio_seconds"):
            document[name] = max(document[name], getattr(running, name))
        document["remaining_seconds"] = running.remaining_seconds
    return JobDocument(**document | {"audio_seconds": round(document["audio_seconds"], 3)})
