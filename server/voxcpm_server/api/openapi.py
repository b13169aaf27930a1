"""The OpenAPI document: that of the routes, with the answers of the middleware."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from voxcpm_server.errors import DOCUMENTED, ErrorDocument
from voxcpm_server.middleware.authentication import PUBLIC_PATHS
from voxcpm_server.middleware.bounds import PROBES

SPEECH_HEADERS: dict[str, Any] = {
    "X-Seed": {"description": "The seed that speaks the same again.", "schema": {"type": "integer"}},
    "X-Sample-Rate": {"description": "Hz of the audio.", "schema": {"type": "integer"}},
    "X-Audio-Duration": {
        "description": "Seconds of the audio, if it is answered whole.",
        "schema": {"type": "number"},
    },
    "X-Ignored-Fields": {
        "description": "Fields that had no effect, as a JSON list; absent if there is none.",
        "schema": {"type": "string"},
    },
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
