"""The door of this room: where Wyoming is spoken, and the server that speaks it."""

from __future__ import annotations

import asyncio
import socket
from importlib import import_module

from voxcpm_server.middleware.authentication import is_loopback
from voxcpm_server.rooms import Address, Room
from voxcpm_server.wyoming.options import WyomingSettings

# Imported only with `--wyoming`: the package wyoming may be missing.
_SERVER = "voxcpm_server.wyoming.server"


class Wyoming(Room):
    """Wyoming over TCP, if `--wyoming` names a port."""

    _server: asyncio.Server | None = None

    @classmethod
    def address(cls, settings: WyomingSettings, *, has_keys: bool) -> Address | None:
        """The server's own host if that is loopback or everyone is let in, otherwise loopback."""
        if settings.wyoming is None:
            return None
        import_module(_SERVER)
        everyone = settings.insecure_wyoming_without_key or (
            settings.insecure_serve_without_key and not has_keys
        )
        host = settings.host if everyone or is_loopback(settings.host) else "127.0.0.1"
        return host, settings.wyoming, "--wyoming"

    async def listen(self, listener: socket.socket) -> None:
        """Take connections from this socket, which listens already."""
        self._server = await import_module(_SERVER).listen(self.service, listener)

    def stop_listening(self) -> None:
        """Take no more connections; open ones end as all conversations do."""
        if self._server is not None:
            self._server.close()
