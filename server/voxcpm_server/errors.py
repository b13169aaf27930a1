"""Errors in OpenAI's format, with one-line messages: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import asyncio
import errno
import logging
import sqlite3
import traceback
from collections.abc import Mapping
from typing import Any

import anyio
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from voxcpm_constants.errors import MissingExtraError, shortened
from voxcpm_runtime import BundleError, Cancelled, InputError, VoxCPMError

_log = logging.getLogger("voxcpm_server")
CLIENT_CLOSED = 499  # status of a request whose client disconnected; in metrics only
RETRY_SECONDS = 5  # Retry-After of transient errors
RETRY = {"Retry-After": str(RETRY_SECONDS)}
MODEL_UNAVAILABLE = "model_unavailable"
# Statuses of the runtime's other errors; the first match wins.
_STATUSES = ((InputError, 400), (Cancelled, CLIENT_CLOSED), (MissingExtraError, 501), (VoxCPMError, 500))
# errno values of a full or broken disk.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {
    401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 408: "timeout", 413: "request_too_large",
    429: "rate_limit_exceeded", 503: "overloaded", 507: "storage",
}  # fmt: skip
# Status → close code of a websocket (RFC 6455, 7.4, and IANA's registry).
_CLOSE_CODES = {413: 1009, 429: 1013, 503: 1013}


class ApiError(HTTPException):
    """An HTTP error. FastAPI handles HTTPException wherever it is raised.

    param: the invalid request field. code: a machine-readable reason. headers: extra response headers.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(status, shortened(" ".join(message.split())), dict(headers or {}))
        self.param = param
        self.code = code or _CODES.get(status)

    @property
    def document(self) -> dict[str, Any]:
        """The response body."""
        status = self.status_code
        error_type = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        return {"error": {"message": self.detail, "type": error_type, "param": self.param, "code": self.code}}

    @property
    def close_code(self) -> int:
        """The websocket close code for this error."""
        return _CLOSE_CODES.get(self.status_code, 1008 if self.status_code < 500 else 1011)

    def response(self) -> JSONResponse:
        """The HTTP response."""
        return JSONResponse(self.document, self.status_code, self.headers)


def client_closed(reason: str = "the client disconnected") -> ApiError:
    """The error of a request whose client disconnected or stalled; seen only in metrics."""
    return ApiError(CLIENT_CLOSED, reason)


def check_capacity(
    total: tuple[int, int], own: tuple[int, int], message: str, retry_after: int, code: str | None = None
) -> None:
    """Raises ApiError if the total (503) or a key's share (429) has reached its maximum.

    total, own: current count and maximum. message: with {} for the count, and {} for " of this key".
    """
    for (count, maximum), status, whose in ((total, 503, ""), (own, 429, " of this key")):
        if count >= maximum:
            text = message.format(count, whose)
            raise ApiError(status, text, code=code, headers={"Retry-After": str(retry_after)})


def speech_too_long(max_seconds: float, per: str = "request; send a shorter text") -> ApiError:
    """The error for speech that exceeds its maximum duration."""
    message = f"the speech exceeds the limit of {max_seconds:g} s per {per}"
    return ApiError(400, message, param="input", code="speech_too_long")


def as_api_error(error: BaseException, text: str = "input") -> ApiError:
    """Convert any error. An unexpected one is logged with its location; clients see only its class.

    text: the request field that holds the text.
    """
    if isinstance(error, ApiError):
        return error
    # FastAPI reports a form that could not be spooled as malformed.
    cause = error.__cause__ if isinstance(error, HTTPException) else error
    if isinstance(cause, sqlite3.OperationalError) or (isinstance(cause, OSError) and cause.errno in _DISK):
        _log.error("storage: %s", cause)
        return ApiError(507, "the server cannot read or write its disk; see its log")
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, f"{error.detail}", headers=error.headers)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"][1:])) or None
        return ApiError(400, f"{where or 'body'}: {first['msg']}", param=where, code="invalid_value")
    if isinstance(error, asyncio.CancelledError):
        return ApiError(503, "the server is shutting down; try again", headers=RETRY)
    if isinstance(error, BundleError):
        # Paths are logged, but not sent to clients.
        _log.error("bundle: %s", error)
        message = "the bundle is unavailable; see the server's log"
        return ApiError(503, message, code=MODEL_UNAVAILABLE, headers=RETRY)
    for error_type, status in _STATUSES:
        if isinstance(error, error_type):
            argument = getattr(error, "argument", None)
            return ApiError(status, str(error), param=text if argument == "text" else argument)
    _log.error("%s", error_location(error))
    return ApiError(500, f"internal server error ({type(error).__name__}); the request may be retried")


def error_location(error: BaseException) -> str:
    """An error's class and location, without its message, which may quote user text."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown location"
    return f"{type(error).__name__} at {where}"


async def send_error(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Respond to a request or websocket handshake with an error, in OpenAI's format if the server supports that."""
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": error.close_code, "reason": ""})
        return
    await error.response()(scope, receive, send)
    if scope["type"] == "websocket":
        # uvicorn logs the handshake as unanswered unless the connection is closed by now.
        with anyio.move_on_after(1):
            disconnects = 0  # one after the response, another when the connection closes
            while disconnects < 2:
                disconnects += (await receive())["type"] == "websocket.disconnect"


def add_error_handlers(app: FastAPI) -> None:
    """Install handlers that return expected errors in OpenAI's format.

    `ErrorAndMetricsMiddleware` handles unexpected ones, and those of websocket handshakes.
    """

    async def handle(connection: HTTPConnection, error: Exception) -> JSONResponse:
        if connection.scope["type"] == "websocket":
            raise error
        return as_api_error(error).response()

    async def not_found(*_: object) -> None:
        # Starlette's own response to a websocket has no body.
        raise ApiError(404, "Not Found")

    app.router.default = not_found
    for error_type in (VoxCPMError, HTTPException, RequestValidationError):
        app.add_exception_handler(error_type, handle)
