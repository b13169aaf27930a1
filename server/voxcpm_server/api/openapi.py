"""The OpenAPI document: that of the routes, with the errors, keys and answers of the middleware."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from voxcpm_server.middleware.authentication import PUBLIC_PATHS
from voxcpm_server.middleware.bounds import PROBES


class ErrorDetail(BaseModel):
    """What is wrong with a request."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorDocument(BaseModel):
    """An error in OpenAI's shape."""

    error: ErrorDetail


def header(description: str, kind: str) -> dict[str, Any]:
    """A header in the document."""
    return {"description": description, "schema": {"type": kind}}


_RETRY_AFTER = {"Retry-After": header("Seconds until to come again.", "integer")}
_HEADERS_OF = {401: {"WWW-Authenticate": header("Bearer.", "string")}, 429: _RETRY_AFTER, 503: _RETRY_AFTER}
_ERRORS = (
    (400, "The request cannot be carried out; the message says why."),
    (401, "The key is missing or wrong."),
    (403, "A web page of another origin, or another name than this machine's."),
    (404, "No such model, voice or path."),
    (408, "The body did not arrive in time."),
    (409, "The name is taken, too many voices are stored, one is damaged, or the job is not done."),
    (413, "The body is too large."),
    (429, "This key has too many requests waiting; Retry-After says when to come again."),
    (501, "The server does not offer it, lacks an optional package, or is one of several, which cannot answer it."),
    (503, "Too many requests are waiting, or bundle or device cannot be used; Retry-After says when to come again."),
    (507, "The server has no room to store it."),
)  # fmt: skip
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorDocument, "description": text}
    | ({"headers": _HEADERS_OF[status]} if status in _HEADERS_OF else {})
    for status, text in _ERRORS
}
"""The errors that every route of speech may answer."""
SPEECH_HEADERS = {
    "X-Seed": header("The seed that speaks the same again.", "integer"),
    "X-Sample-Rate": header("Hz of the audio.", "integer"),
    "X-Audio-Duration": header("Seconds of the audio, if it is answered whole.", "number"),
    "X-Ignored-Fields": header("Fields that had no effect, as a JSON list; absent if there is none.", "string"),
}  # fmt: skip
"""The headers of an answer that speaks."""
_XI_KEY = {"type": "apiKey", "in": "header", "name": "xi-api-key"}
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key of this server."},
    "xi-api-key": {**_XI_KEY, "description": "The same as ElevenLabs' clients send it."},
}
_NO_KEY: dict[str, list[str]] = {}


class DescribedApp(FastAPI):
    """An app whose OpenAPI document includes the middleware's answers and the keys, which FastAPI does not know.

    FastAPI's 422 for wrong fields is left out: here it is a 400.
    """

    def openapi(self) -> dict[str, Any]:
        """The document at /openapi.json."""
        document = super().openapi()
        components = document["components"]
        for unused in ("HTTPValidationError", "ValidationError"):
            components["schemas"].pop(unused, None)
        components["securitySchemes"] = _SCHEMES
        reference = {"$ref": f"#/components/schemas/{ErrorDocument.__name__}"}
        anyone = [] if self.state.service.needs_key else [_NO_KEY]
        for path, operations in document["paths"].items():
            statuses = [] if path in PROBES else [503]
            statuses += [] if path in PUBLIC_PATHS else [401, 403]
            for operation in operations.values():
                operation["responses"].pop("422", None)
                for status in statuses:
                    described = {name: value for name, value in DOCUMENTED[status].items() if name != "model"}
                    described["content"] = {"application/json": {"schema": reference}}
                    operation["responses"].setdefault(str(status), described)
                if path not in PUBLIC_PATHS:
                    operation["security"] = [*({name: []} for name in _SCHEMES), *anyone]
        return document
