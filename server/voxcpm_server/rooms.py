"""Optional rooms: folders of this package that can be deleted while the rest works."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from fastapi import APIRouter

JOBS = "jobs.execution"
PAGE = "page.files"
WYOMING = "wyoming.server"
_ROUTES = ("jobs.routes", "elevenlabs.routes")


def optional(module: str) -> ModuleType | None:
    """A module of an optional room, such as "jobs.execution"; None if the room was deleted."""
    if find_spec(f"voxcpm_server.{module.partition('.')[0]}") is None:
        return None
    return import_module(f"voxcpm_server.{module}")


def optional_routers() -> list[APIRouter]:
    """The routers of the optional rooms that are there, which have paths with and without /v1."""
    return [module.router for module in map(optional, _ROUTES) if module is not None]
