"""The command `voxcpm-coreml serve`."""

from __future__ import annotations

import contextlib
import signal
import socket
import warnings
from collections.abc import Iterator
from typing import Any

import typer
import uvicorn

from voxcpm_constants.errors import os_reason
from voxcpm_runtime import InputError, SuspiciousWarning
from voxcpm_runtime.commands.engine import loaded, loading_text, opened
from voxcpm_runtime.commands.parameters import takes_groups
from voxcpm_runtime.commands.shared_arguments import BundleArgument, Engine, Quiet
from voxcpm_runtime.commands.status_line import status_line
from voxcpm_server.application import create_app
from voxcpm_server.authentication import check_exposure, read_keys
from voxcpm_server.metrics import Metrics
from voxcpm_server.service import Service
from voxcpm_server.settings import Settings
from voxcpm_server.stored_voices import read_aliases

_BACKLOG = 2048


@takes_groups()
def serve(*, bundle: BundleArgument = None, settings: Settings, engine: Engine, quiet: Quiet = False) -> None:
    """Serve speech over HTTP, as OpenAI's API: on 127.0.0.1:8000 with the built-in voice, unless told otherwise."""
    keys = read_keys(settings)
    check_exposure(settings, keys)
    read_aliases(settings.voice_aliases)
    # Before minutes of loading: two servers on one port.
    with contextlib.closing(_listening(settings.host, settings.port)) as listener:
        opened_bundle = opened(bundle, engine, shown=not quiet)
        with status_line(loading_text(opened_bundle, engine), shown=not quiet):
            tts = loaded(opened_bundle, engine)
        app = create_app(tts, settings, keys)
        config = uvicorn.Config(
            app,
            log_level="info" if settings.access_log else "warning",
            access_log=settings.access_log,
            timeout_graceful_shutdown=settings.drain_seconds,
            server_header=False,
        )
        server = _Server(config, app.state.service)
        if not quiet:
            typer.echo(f"listening on {_url(listener)} ({app.state.service.model_names[0]})", err=True)
        with _warnings_counted(app.state.service.metrics), tts:
            # uvicorn sends itself the signal again when it has drained; that ends nothing a second time.
            signal.signal(signal.SIGTERM, lambda *_: None)
            server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn, which says that it drains before it does."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Called by a signal: the first one drains, a second Ctrl-C ends at once."""
        self._service.draining = True
        super().handle_exit(sig, frame)


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises InputError for an address that is in use or not this machine's."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else "no host name"
        raise InputError(
            f"{host} port {port}: cannot listen there ({reason}); choose another --port or --host"
        ) from None


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


@contextlib.contextmanager
def _warnings_counted(metrics: Metrics) -> Iterator[None]:
    """Count warnings about speech; shown they might quote a text."""

    def count(_message: Warning | str, category: type[Warning], *_: Any) -> None:
        if issubclass(category, SuspiciousWarning):
            metrics.suspicious.inc()

    with warnings.catch_warnings():
        warnings.simplefilter("always", SuspiciousWarning)
        warnings.showwarning = count  # type: ignore[assignment]
        yield
