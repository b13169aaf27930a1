"""Errors in OpenAI's shape, each with one line of text: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import sqlite3
import traceback
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from voxcpm_constants.errors import MissingExtraError
from voxcpm_runtime import BundleError, Cancelled, DeviceError, InputError, VoxCPMError

_log = logging.getLogger("voxcpm_server")
CLIENT_GONE = 499
"""Status of a request whose client has gone away; in metrics only."""

_STATUSES: dict[type[VoxCPMError], int] = {
    InputError: 400,
    Cancelled: CLIENT_GONE,
    MissingExtraError: 501,
    VoxCPMError: 500,
}
"""Statuses of the runtime's errors; the first match wins."""
MODEL_UNAVAILABLE = "model_unavailable"
_UNAVAILABLE: dict[type[VoxCPMError], tuple[str, str]] = {
    BundleError: ("bundle", MODEL_UNAVAILABLE),
    DeviceError: ("device", "device_unavailable"),
}
"""Transient errors of the runtime: what is unavailable, and the error's code."""
RETRY_SECONDS = "5"
"""Retry-After of transient errors."""
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
"""Error numbers of a full or broken disk."""
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    503: "overloaded",
    507: "storage",
}


class ApiError(HTTPException):
    """An error with a status. FastAPI passes HTTPException through wherever it is raised.

    param: the request's field that is wrong. code: a machine-readable reason. headers: more headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, " ".join(message.split()), dict(headers or {}))
        self.param = param
        self.code = code or _CODES.get(status)

    @property
    def document(self) -> dict[str, Any]:
        """The body of the answer: `{"error": {"message", "type", "param", "code"}}`."""
        status = self.status_code
        kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The answer."""
        return JSONResponse(self.document, self.status_code, self.headers)


def speech_too_long(max_seconds: float) -> ApiError:
    """The error of a speech that is longer than a request may be."""
    return ApiError(
        400,
        f"the speech is longer than {max_seconds:g} s, the most of a request here; send a part of the text",
        param="input",
        code="speech_too_long",
    )


class ErrorDetail(BaseModel):
    """What is wrong with a request."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorDocument(BaseModel):
    """An error in OpenAI's shape."""

    error: ErrorDetail


_RETRY_AFTER = {"Retry-After": {"description": "Seconds until to come again.", "schema": {"type": "integer"}}}
_CHALLENGE = {"WWW-Authenticate": {"description": "Bearer.", "schema": {"type": "string"}}}
_HEADERS_OF = {401: _CHALLENGE, 429: _RETRY_AFTER, 503: _RETRY_AFTER}
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    status: {
        "model": ErrorDocument,
        "description": description,
        **({"headers": _HEADERS_OF[status]} if status in _HEADERS_OF else {}),
    }
    for status, description in (
        (400, "The request cannot be carried out; the message says why."),
        (401, "The key is missing or wrong."),
        (403, "A web page of another origin, or another name than this machine's."),
        (404, "No such model, voice or path."),
        (408, "The body did not arrive in time."),
        (409, "The name is taken, too many voices are stored, one is damaged, or the job is not done."),
        (413, "The body is too large."),
        (429, "This key has too many requests waiting; Retry-After says when to come again."),
        (
            501,
            "The server does not offer it, lacks an optional package, or is one of several, which cannot answer it.",
        ),
        (
            503,
            "Too many requests are waiting, or bundle or device cannot be used; Retry-After says when to come again.",
        ),
        (507, "The server has no room to store it."),
    )
}
"""The errors that every route of speech may answer, for the OpenAPI document."""


_CLOSE_CODES = {413: 1009, 429: 1013, 503: 1013}
"""Status → close code of a websocket (RFC 6455, 7.4, and IANA's registry)."""
_END_SECONDS = 1


def close_code(error: ApiError) -> int:
    """The close code of a websocket after this error."""
    return _CLOSE_CODES.get(error.status_code, 1008 if error.status_code < 500 else 1011)


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request or a websocket's handshake with an error, in OpenAI's shape if the server supports it."""
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": close_code(error), "reason": ""})
    else:
        await error.response()(scope, receive, send)
        if scope["type"] == "websocket":
            # uvicorn logs the handshake as unanswered unless the connection has ended by now.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(_ended(receive), _END_SECONDS)


async def _ended(receive: Receive) -> None:
    """Wait until the connection of a refused handshake has ended."""
    # uvicorn sends this once when it has answered, and again when the connection has ended.
    times = 0
    while times < 2:
        times += (await receive())["type"] == "websocket.disconnect"


def as_api_error(error: BaseException, text: str = "input") -> ApiError:
    """The answer to any error. For an unexpected one, the place is logged, and clients see only the class.

    text: the name of the field with the text.
    """
    if isinstance(error, ApiError):
        return error
    # FastAPI reports a form that could not be spooled as malformed.
    cause = error.__cause__ if isinstance(error, HTTPException) else error
    if isinstance(cause, sqlite3.OperationalError) or (isinstance(cause, OSError) and cause.errno in _DISK):
        _log.error("storage: %s", cause)
        return ApiError(507, "the server cannot use its disk; its log says why")
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, f"{error.detail}", headers=error.headers)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or None
        return ApiError(400, f"{where or 'body'}: {first['msg']}", param=where, code="invalid_value")
    if isinstance(error, asyncio.CancelledError):
        return ApiError(503, "the server has ended; try again", headers={"Retry-After": RETRY_SECONDS})
    for kind, (what, code) in _UNAVAILABLE.items():
        if isinstance(error, kind):
            # Paths are logged, but not sent to clients.
            _log.error("%s: %s", what, error)
            return ApiError(
                503,
                f"the {what} cannot be used now; the server's log says why",
                code=code,
                headers={"Retry-After": RETRY_SECONDS},
            )
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            argument = getattr(error, "argument", None)
            return ApiError(status, str(error), param=text if argument == "text" else argument)
    _log.error("%s", place_of(error))
    return ApiError(500, f"the server has failed ({type(error).__name__}); the request may be tried again")


def place_of(error: BaseException) -> str:
    """An error's class and place, without its message, which may quote the text."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
    return f"{type(error).__name__} at {where}"


def answer_in_openais_shape(app: FastAPI) -> None:
    """Have an app answer expected errors in OpenAI's shape.

    `ErrorAndMetricsMiddleware` answers unexpected ones, and those of a websocket's handshake.
    """

    async def answered(connection: HTTPConnection, error: Exception) -> JSONResponse:
        if connection.scope["type"] == "websocket":
            raise error
        return as_api_error(error).response()

    async def no_such_path(*_: object) -> None:
        # Starlette's own answer to a websocket has no body.
        raise ApiError(404, "Not Found")

    app.router.default = no_such_path

    for kind in (VoxCPMError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, answered)
