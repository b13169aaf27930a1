"""Serves the web page: the static files in `assets`."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources

from fastapi import APIRouter, Request
from starlette.responses import Response

from voxcpm_server.rooms import Room
from voxcpm_server.speech.service import Service

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# The page loads only its own files and calls only its own server; inline scripts and framing are forbidden. With
# trusted types, no script can turn text into HTML.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; media-src blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Browsers may cache the files, but must revalidate them.
    "Cache-Control": "no-cache",
}


class Page(Room):
    """The page at `/` and its files, which need no key; the page itself prompts for one.

    Each asset has a route and is read once, here, so no other file is reachable.
    """

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        router = APIRouter(include_in_schema=False)
        for file in (resources.files(__package__) / "assets").iterdir():
            if content_type := _TYPES.get(file.name.rpartition(".")[2]):
                path = "/" if file.name == "index.html" else f"/page/{file.name}"
                serve = _static_handler(file.read_bytes(), content_type)
                router.add_api_route(path, serve, methods=["GET", "HEAD"], response_class=Response)
                self.public_paths |= {path}
        self.unprefixed = (router,)


def _static_handler(content: bytes, content_type: str) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": tag}

    async def serve(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=content_type)

    return serve
