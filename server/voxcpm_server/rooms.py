"""Optional rooms: folders of this package that can be deleted while the rest works.

A room is entered by one door, a subclass of `Room`, and has options of its own, a subclass of `Settings`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import make_dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from voxcpm_server.settings import Settings

if TYPE_CHECKING:
    from voxcpm_server.speech.service import Service

_DOORS = {
    "elevenlabs": "routes.ElevenLabs", "jobs": "routes.JobsRoom", "page": "files.Page", "wyoming": "server.Wyoming"
}  # fmt: skip
_OPTIONS = {
    "cluster": "options.ClusterSettings", "jobs": "options.JobSettings", "wyoming": "options.WyomingSettings"
}  # fmt: skip
Address = tuple[str, int, str]
"""Where a room listens, apart from HTTP: host, port, and the option that chose them, for messages."""


class Room:
    """What an optional room adds to an app. Subclasses override the parts that they have."""

    routers: tuple[APIRouter, ...] = ()  # routes, with and without the prefix /v1
    unprefixed: tuple[APIRouter, ...] = ()  # routes without the prefix only

    def __init__(self, service: Service) -> None:
        self.service = service

    def about(self) -> dict[str, Any]:
        """Fields of `/v1/about`, and their values now."""
        return {}

    def limits(self) -> dict[str, Any]:
        """Likewise of its `limits`."""
        return {}

    @classmethod
    def address(cls, settings: Any, *, has_keys: bool) -> Address | None:  # noqa: ARG003
        """Where it listens, apart from HTTP; None by default."""
        return None

    def is_public(self, path: str) -> bool:  # noqa: ARG002
        """Whether a path of it needs no key."""
        return False

    async def open(self) -> None:
        """Called when the server starts. Raises InputError if it cannot start with these settings."""

    def work(self) -> None:
        """Called once the default bundle is loaded."""

    async def close(self) -> None:
        """Called when the server ends, while the bundles are still open."""

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        """Take connections from the socket of its `address`, which listens already."""
        raise NotImplementedError


def _present(table: Mapping[str, str]) -> dict[str, Any]:
    """What a table names, by the name of the room, without the rooms that were deleted."""
    found = {}
    for room, name in table.items():
        spec = find_spec(f"{__package__}.{room}")
        # A folder in which only __pycache__ is left is a namespace package, without an origin.
        if spec is not None and spec.origin is not None:
            module, _, attribute = name.partition(".")
            found[room] = getattr(import_module(f"{__package__}.{room}.{module}"), attribute)
    return found


def doors() -> dict[str, type[Room]]:
    """The doors of the rooms that are there, by the name of the room."""
    return _present(_DOORS)


if TYPE_CHECKING:
    AllSettings = Settings
else:
    _bases = (*_present(_OPTIONS).values(), Settings)
    AllSettings = make_dataclass("AllSettings", (), bases=_bases, frozen=True)
    # So that it can be pickled.
    AllSettings.__module__ = __name__
"""The core's settings and those of all rooms that are there."""
