"""The OpenAPI document: FastAPI's, plus the middleware's responses and API keys."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from voxcpm_server.middleware.authentication import PUBLIC_PATHS
from voxcpm_server.middleware.limits import PROBES
from voxcpm_server.speech.speech_responses import JSON_LINES


class ErrorDetail(BaseModel):
    """Details of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorDocument(BaseModel):
    """An error in OpenAI's format."""

    error: ErrorDetail


def header(description: str, kind: str) -> dict[str, Any]:
    """An OpenAPI header object."""
    return {"description": description, "schema": {"type": kind}}


_RETRY_AFTER = {"Retry-After": header("Seconds to wait before retrying.", "integer")}
_HEADERS_OF = {401: {"WWW-Authenticate": header("Bearer.", "string")}, 429: _RETRY_AFTER, 503: _RETRY_AFTER}
_ERRORS = (
    (400, "Invalid request; the message says why."),
    (401, "Missing or wrong API key."),
    (403, "Web page of another origin, or a Host other than this machine."),
    (404, "No such model, voice or path."),
    (408, "Timeout while reading the body."),
    (409, "Name taken, too many stored voices, damaged voice, or job not done."),
    (413, "Body too large."),
    (429, "Too many queued requests or stored jobs for this key; see Retry-After."),
    (501, "Disabled, missing an optional package, or unsupported with several replicas."),
    (503, "Queue full, or bundle unavailable; see Retry-After."),
    (507, "Insufficient storage."),
)  # fmt: skip
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorDocument, "description": text}
    | ({"headers": _HEADERS_OF[status]} if status in _HEADERS_OF else {})
    for status, text in _ERRORS
}
"""Errors that every speech route may return."""
SPEECH_HEADERS = {
    "X-Seed": header("Seed that reproduces the speech.", "integer"),
    "X-Sample-Rate": header("Sample rate in Hz.", "integer"),
    "X-Replaced-Characters": header("JSON string of characters that were transliterated or skipped.", "string"),
    "X-Recording-Warnings": header("What is wrong with a recording in the request, as a JSON list.", "string"),
    "X-Audio-Duration": header("Duration in seconds, with `stream: false` only.", "number"),
    "X-Word-Timestamps": header("With `word_timestamps`: JSON list of word, start_ms and end_ms.", "string"),
    "X-Word-Timestamps-Omitted": header("Present if that would exceed 4096 bytes.", "string"),
    "X-Unsaid-Words": header("With `stream: false`: words that are not said, as JSON (word, place).", "string"),
    "X-Repeated-Words": header("The same of words that are said again.", "string"),
    "X-Ignored-Fields": header("Fields that had no effect, as a JSON list; absent if there are none.", "string"),
}  # fmt: skip
"""Headers of speech responses."""
CAPTION_RESPONSES = {
    **ERROR_RESPONSES,
    200: {"content": {"application/json": {}, JSON_LINES: {}}},
}
"""The responses of routes that send one JSON object, or one per line if streamed."""
_XI_KEY = {"type": "apiKey", "in": "header", "name": "xi-api-key"}
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key of this server."},
    "xi-api-key": {**_XI_KEY, "description": "The same key in ElevenLabs' header."},
}
_NO_KEY: dict[str, list[str]] = {}


class DocumentedApp(FastAPI):
    """An app whose OpenAPI document includes the middleware's responses and the API keys.

    FastAPI's 422 for invalid fields is removed: this server returns 400.
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
                    described = {
                        name: value for name, value in ERROR_RESPONSES[status].items() if name != "model"
                    }
                    described["content"] = {"application/json": {"schema": reference}}
                    operation["responses"].setdefault(str(status), described)
                if path not in PUBLIC_PATHS:
                    operation["security"] = [*({name: []} for name in _SCHEMES), *anyone]
        return document
