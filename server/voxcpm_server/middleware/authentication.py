"""API key authentication. Without a key, only local programs are served."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from voxcpm_constants.errors import naming_errors
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime import InputError
from voxcpm_server.errors import ApiError, send_error
from voxcpm_server.settings import Settings

KEYS_VARIABLE = "VOXCPM_COREML_API_KEYS"
PUBLIC_PATHS = frozenset({"/healthz", "/ready", "/openapi.json", "/about", "/v1/about"})
"""Paths that need no key."""
ANYONE = ""  # the owner of requests to a server without keys
KEY_PROTOCOL = "openai-insecure-api-key."
"""Prefix of a key in a websocket's subprotocol: web pages cannot send headers."""
_INSECURE = "--insecure-serve-without-key"


class Keys:
    """The server's API keys. If there are none, every request is accepted."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __len__(self) -> int:
        return len(self._digests)

    def owner(self, key: str | None) -> str | None:
        """The owner id of a key, stable across restarts and stored with jobs; None for a wrong key."""
        if not self._digests:
            return ANYONE
        # Compare all keys, so that timing reveals neither which one matches nor how much of it.
        digest = _digest(key or "")
        fits = [hmac.compare_digest(digest, known) for known in self._digests]
        return f"key-{digest.hex()[:16]}" if any(fits) else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(settings: Settings) -> Keys:
    """The keys from the command line, the file and the environment. Raises InputError for empty ones."""
    keys = list(settings.api_key or ())
    if (path := settings.api_key_file) is not None:
        with naming_errors(f"{path}: cannot read the keys"):
            lines = user_path(path).read_text(encoding="utf-8").splitlines()
        found = [line for line in map(str.strip, lines) if line and not line.startswith("#")]
        if not found:
            raise InputError(f"{path}: expected one key per line, found none")
        keys += found
    keys += [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",") if key.strip()]
    if not all(key.strip() for key in keys):
        raise InputError("--api-key: expected a key, got an empty string; omit it to serve without one")
    return Keys(dict.fromkeys(keys))


def check_exposure(settings: Settings, keys: Keys) -> None:
    """Raises InputError if other machines could reach a server without a key."""
    if not len(keys) and not settings.insecure_serve_without_key and not is_loopback(settings.host):
        advice = f"give a key (--api-key-file, or ${KEYS_VARIABLE}), listen on 127.0.0.1, or pass {_INSECURE}"
        raise InputError(f"{settings.host} is reachable from other machines: {advice}")


def is_loopback(host: str) -> bool:
    """Whether a host name or address, without a port, is loopback."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class AuthenticationMiddleware:
    """Checks keys, and protects a loopback server from web pages that its user visits.

    Rejects requests with a foreign Origin, and those that the browser marks as cross-site, such as images and audio,
    which have no Origin. Without a key, the Host must be loopback, against DNS rebinding.
    """

    def __init__(self, app: ASGIApp, *, keys: Keys, settings: Settings, public_paths: frozenset[str]) -> None:
        self._app = app
        self._public_paths = public_paths
        self._keys = keys
        self._origins = frozenset(settings.cors_origin or ())
        self._only_loopback = not len(keys) and not settings.insecure_serve_without_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set the owner in `scope["state"]["owner"]` and continue, or respond with 401 or 403."""
        if scope["type"] in ("http", "websocket") and scope["path"] not in self._public_paths:
            try:
                owner = self._owner(Headers(scope=scope), scope.get("subprotocols", ()))
            except ApiError as error:
                await send_error(error, scope, receive, send)
                return
            scope.setdefault("state", {})["owner"] = owner
        await self._app(scope, receive, send)

    def _owner(self, headers: Headers, protocols: Iterable[str]) -> str:
        host = headers.get("host", "")
        if self._is_cross_origin(headers, host):
            message = "requests from web pages of other origins are rejected; --cors-origin allows one"
            raise ApiError(403, message)
        # Without the port, which is optional.
        name = host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if self._only_loopback and not is_loopback(name):
            message = "without a key this server accepts only localhost or a loopback address as Host"
            raise ApiError(403, f"{message}; give it a key, or pass {_INSECURE}")
        owner = self._keys.owner(_request_key(headers, protocols))
        if owner is None:
            message = "expected an API key of this server in the header Authorization: Bearer KEY"
            raise ApiError(401, message, headers={"WWW-Authenticate": "Bearer"})
        return owner

    def _is_cross_origin(self, headers: Headers, host: str) -> bool:
        origin = headers.get("origin")
        if origin in self._origins or "*" in self._origins:
            return False
        if headers.get("sec-fetch-site") == "cross-site":
            return True
        try:
            return origin is not None and urlsplit(origin).netloc != host
        except ValueError:
            return True


def _request_key(headers: Headers, protocols: Iterable[str]) -> str | None:
    """The key of a request: OpenAI's header, ElevenLabs', or a websocket subprotocol."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    offered = (name.removeprefix(KEY_PROTOCOL) for name in protocols if name.startswith(KEY_PROTOCOL))
    return headers.get("xi-api-key") or next(offered, None)
