"""The door of this room: where Wyoming is spoken. The package wyoming, which may be missing, is imported with it."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from voxcpm_server.middleware.authentication import is_loopback
from voxcpm_server.rooms import Address, Room
from voxcpm_server.wyoming.options import WyomingSettings

MAX_LINE_BYTES = 65_536


class Wyoming(Room):
    """Wyoming over TCP, if `--wyoming` names a port."""

    @classmethod
    def address(cls, settings: WyomingSettings, *, has_keys: bool) -> Address | None:
        """The server's own host if that is loopback or everyone is let in, otherwise loopback."""
        if settings.wyoming is None:
            return None
        import voxcpm_server.wyoming.server  # noqa: F401 - fails before anything is loaded

        everyone = settings.insecure_wyoming_without_key or (
            settings.insecure_serve_without_key and not has_keys
        )
        host = settings.host if everyone or is_loopback(settings.host) else "127.0.0.1"
        return host, settings.wyoming, "--wyoming"

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        """Take connections from this socket, which listens already."""
        from voxcpm_server.wyoming.server import connected

        return await asyncio.start_server(
            partial(connected, self.service), sock=listener, limit=MAX_LINE_BYTES
        )
