"""Optional rooms: subpackages that can be deleted without breaking the rest.

Each has one entry point (its door), a subclass of `Room`, and may add options, a subclass of `Settings`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import make_dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from voxcpm_server.settings import Settings

if TYPE_CHECKING:
    from fastapi import APIRouter

    from voxcpm_server.speech.service import Service

_DOORS = {
    "elevenlabs": "routes.ElevenLabs", "jobs": "routes.JobsRoom", "page": "files.Page", "wyoming": "server.Wyoming"
}  # fmt: skip
_OPTIONS = {
    "cluster": "options.ClusterSettings", "jobs": "options.JobSettings", "wyoming": "options.WyomingSettings"
}  # fmt: skip
Address = tuple[str, int, str]
"""Address of a room's own listener: host, port, and the option that chose them, for error messages."""


class Room:
    """Base class of optional rooms. Subclasses override what they add to the app."""

    first: tuple[APIRouter, ...] = ()  # routes that are tried before the core's, with and without /v1
    routers: tuple[APIRouter, ...] = ()  # routes, with and without the prefix /v1
    unprefixed: tuple[APIRouter, ...] = ()  # routes without the prefix only

    def __init__(self, service: Service) -> None:
        self.service = service

    def about(self) -> dict[str, Any]:
        """Extra fields of `/v1/about`, with their current values."""
        return {}

    def limits(self) -> dict[str, Any]:
        """Extra fields of its `limits`."""
        return {}

    @classmethod
    def address(cls, settings: Any, *, has_keys: bool) -> Address | None:  # noqa: ARG003
        """Address of its own listener; None if it has none."""
        return None

    def is_public(self, path: str) -> bool:  # noqa: ARG002
        """Whether a path of this room needs no key."""
        return False

    async def open(self) -> None:
        """Called at startup. Raises InputError if the room cannot start with these settings."""

    def start(self) -> None:
        """Called once the default bundle is loaded."""

    async def close(self) -> None:
        """Called at shutdown, while the bundles are still open."""

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        """Accept connections on the listening socket of its `address`."""
        raise NotImplementedError


def _installed(table: Mapping[str, str]) -> dict[str, Any]:
    """The objects that a table names, by room name, without deleted rooms."""
    found = {}
    for room, name in table.items():
        spec = find_spec(f"{__package__}.{room}")
        # A folder in which only __pycache__ is left is a namespace package, without an origin.
        if spec is not None and spec.origin is not None:
            module, _, attribute = name.partition(".")
            found[room] = getattr(import_module(f"{__package__}.{room}.{module}"), attribute)
    return found


def doors() -> dict[str, type[Room]]:
    """The doors of all installed rooms, by room name."""
    return _installed(_DOORS)


if TYPE_CHECKING:
    AllSettings = Settings
else:
    _bases = (*_installed(_OPTIONS).values(), Settings)
    AllSettings = make_dataclass("AllSettings", (), bases=_bases, frozen=True)
    # For pickle.
    AllSettings.__module__ = __name__
"""The settings of the core and all installed rooms."""
