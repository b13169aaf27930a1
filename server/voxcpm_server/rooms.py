"""Optional rooms: subpackages that can be deleted without breaking the rest.

Entry points name what each room has, in pyproject.toml: its door, a subclass of `Room`, and its options, a subclass of
`Settings`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from voxcpm_server.settings import Settings

if TYPE_CHECKING:
    from fastapi import APIRouter

    from voxcpm_server.speech.service import Service

Address = tuple[str, int, str]
"""Address of a room's own listener: host, port, and the option that chose them, for error messages."""


class Room:
    """Base class of optional rooms. Subclasses override what they add to the app."""

    first: tuple[APIRouter, ...] = ()  # routes that are tried before the core's lists, with and without /v1
    routers: tuple[APIRouter, ...] = ()  # routes, with and without the prefix /v1
    unprefixed: tuple[APIRouter, ...] = ()  # routes without the prefix only
    public_paths: frozenset[str] = frozenset()  # paths that need no key

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

    async def open(self) -> None:
        """Called at startup. Raises InputError if the room cannot start with these settings."""

    def start(self) -> None:
        """Called once the default bundle is loaded."""

    async def close(self) -> None:
        """Called at shutdown, while the bundles are still open."""

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        """Accept connections on the listening socket of its `address`."""
        raise NotImplementedError


def _installed(kind: str) -> dict[str, Any]:
    """What the rooms have of one kind, by room name, without deleted rooms."""
    found = {}
    for entry in sorted(entry_points(group=f"voxcpm_coreml.server_{kind}"), key=lambda entry: entry.name):
        spec = find_spec(entry.module.rpartition(".")[0])
        # A folder in which only __pycache__ is left is a namespace package, without an origin.
        if spec is not None and spec.origin is not None:
            found[entry.name] = entry.load()
    return found


def doors() -> dict[str, type[Room]]:
    """The doors of all installed rooms, by room name."""
    return _installed("rooms")


def elsewhere() -> dict[str, Callable[..., bool]]:
    """What may serve outside this process, by room name: called with bundle, engine, settings and keys."""
    return _installed("elsewhere")


if TYPE_CHECKING:
    AllSettings = Settings
else:

    @dataclass(frozen=True)
    class AllSettings(*_installed("options").values(), Settings):
        """The settings of the core and all installed rooms."""
