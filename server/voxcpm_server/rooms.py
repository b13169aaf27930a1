"""Optional rooms: folders of this package that can be deleted while the rest works.

A room is entered by one door: a subclass of `Room` that `_DOORS` names.
"""

from __future__ import annotations

import socket
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from fastapi import APIRouter

from voxcpm_runtime import InputError
from voxcpm_server.settings import Settings

if TYPE_CHECKING:
    from voxcpm_server.speech.service import Service

_DOORS = {
    "elevenlabs": "routes.ElevenLabs",
    "jobs": "routes.JobsRoom",
    "page": "files.Page",
    "wyoming": "room.Wyoming",
}


class Address(NamedTuple):
    """Where a room listens, apart from HTTP."""

    host: str
    port: int
    option: str
    """The command-line option that chose it, for messages."""


class Room:
    """What an optional room adds to an app. Subclasses override the parts that they have."""

    routers: tuple[APIRouter, ...] = ()
    """Routes, with and without the prefix /v1."""
    unprefixed: tuple[APIRouter, ...] = ()
    """Routes without the prefix only."""

    def __init__(self, service: Service) -> None:
        self.service = service

    @classmethod
    def address(cls, settings: Settings, *, has_keys: bool) -> Address | None:  # noqa: ARG003
        """Where it listens, apart from HTTP; None by default."""
        return None

    @property
    def available(self) -> bool:
        """Whether its routes can be used with the service's settings."""
        return True

    def is_public(self, path: str) -> bool:  # noqa: ARG002
        """Whether a path of it needs no key."""
        return False

    async def open(self) -> None:
        """Called when the server starts. Raises InputError if it cannot start with these settings."""

    def work(self) -> None:
        """Called once the default bundle is loaded."""

    async def close(self) -> None:
        """Called when the server ends, while the bundles are still open."""

    async def listen(self, listener: socket.socket) -> None:
        """Take connections from the socket of its `address`, which listens already."""

    def stop_listening(self) -> None:
        """Take no more connections."""


def doors() -> dict[str, type[Room]]:
    """The doors of the rooms that are there, by the name of the room."""
    found = {}
    for name, door in _DOORS.items():
        module, _, attribute = door.partition(".")
        if (loaded := optional(f"{name}.{module}")) is not None:
            found[name] = getattr(loaded, attribute)
    return found


def optional(module: str) -> ModuleType | None:
    """A module of an optional room, such as "cluster.serve"; None if the room was deleted."""
    spec = find_spec(f"voxcpm_server.{module.partition('.')[0]}")
    # A folder in which only __pycache__ is left is a namespace package, without an origin.
    if spec is None or spec.origin is None:
        return None
    return import_module(f"voxcpm_server.{module}")


def missing_room(option: str) -> InputError:
    """The error of an option whose room was deleted."""
    return InputError(f"{option}: this installation does not include it; leave the option out")
