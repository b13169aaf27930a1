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


def _header(description: str, kind: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}}


_RETRY_AFTER = {"Retry-After": _header("Seconds until to come again.", "integer")}
_CHALLENGE = {"WWW-Authenticate": _header("Bearer.", "string")}
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
"""The errors that every route of speech may answer."""
SPEECH_HEADERS = {
    "X-Seed": _header("The seed that speaks the same again.", "integer"),
    "X-Sample-Rate": _header("Hz of the audio.", "integer"),
    "X-Audio-Duration": _header("Seconds of the audio, if it is answered whole.", "number"),
    "X-Ignored-Fields": _header(
        "Fields that had no effect, as a JSON list; absent if there is none.", "string"
    ),
}
"""The headers of an answer that speaks."""
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key of this server."},
    "xi-api-key": {
        "type": "apiKey",
        "in": "header",
        "name": "xi-api-key",
        "description": "The same as ElevenLabs' clients send it.",
    },
}
_NO_KEY: dict[str, list[str]] = {}


class DescribedApp(FastAPI):
    """An app whose OpenAPI document includes the middleware's answers and the keys, which FastAPI does not know.

    FastAPI's 422 for wrong fields is left out: here it is a 400. `needs_key` is in the app's state.
    """

    def openapi(self) -> dict[str, Any]:
        """The document at /openapi.json."""
        document = super().openapi()
        components = document["components"]
        for unused in ("HTTPValidationError", "ValidationError"):
            components["schemas"].pop(unused, None)
        components["securitySchemes"] = _SCHEMES
        anyone = [] if self.state.needs_key else [_NO_KEY]
        for path, operations in document["paths"].items():
            for operation in operations.values():
                answers = operation["responses"]
                answers.pop("422", None)
                _describe(answers, [503] if path not in PROBES else [])
                if path not in PUBLIC_PATHS:
                    _describe(answers, [401, 403])
                    operation["security"] = [*({name: []} for name in _SCHEMES), *anyone]
        return document


def _describe(answers: dict[str, Any], statuses: list[int]) -> None:
    """Add these statuses, unless the route describes them itself."""
    reference = f"#/components/schemas/{ErrorDocument.__name__}"
    for status in statuses:
        described = {name: value for name, value in DOCUMENTED[status].items() if name != "model"}
        content = {"application/json": {"schema": {"$ref": reference}}}
        answers.setdefault(str(status), {**described, "content": content})
