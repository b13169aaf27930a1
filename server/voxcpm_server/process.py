"""The process of `voxcpm-coreml serve`: it listens, loads, and serves until a signal."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from functools import partial

import python_multipart  # noqa: F401 - if it is missing, FastAPI's error names another package
import typer
import websockets  # noqa: F401 - if it is missing, uvicorn rejects only websockets

from voxcpm_constants.errors import os_reason
from voxcpm_constants.progress_lines import status_line
from voxcpm_constants.user_folders import is_hub_id, user_path
from voxcpm_runtime import InputError
from voxcpm_runtime.commands.shared_arguments import Engine, load_voxcpm, open_with_engine
from voxcpm_server.application import create_app
from voxcpm_server.middleware.authentication import check_exposure, read_keys
from voxcpm_server.middleware.metrics import count_suspicious_warnings
from voxcpm_server.rooms import AllSettings, doors, elsewhere
from voxcpm_server.serving import Server
from voxcpm_server.speech.served_bundles import Source, Unloaded, parse_named_bundles
from voxcpm_server.speech.service import Service
from voxcpm_server.speech.stored_voices import read_aliases

_BACKLOG = 2048


def serve_until_signal(bundle: str | None, settings: AllSettings, engine: Engine, *, quiet: bool) -> None:
    """Serve. Raises InputError for wrong settings, and what the default bundle raises when it opens."""
    keys = read_keys(settings)
    check_exposure(settings, keys)
    read_aliases(settings.voice_aliases)
    settings.check()
    if any(serve(bundle, engine, settings, keys, quiet=quiet) for serve in elsewhere().values()):
        return
    paths = parse_named_bundles(settings.bundles)
    for path in paths.values():
        if not is_hub_id(path) and not user_path(path).is_dir():
            raise InputError(f"--bundle: {path}: no such folder; expected a bundle or hub id (org/name)")
    named = {name: _source(path, engine) for name, path in paths.items()}
    failures: list[Exception] = []
    with contextlib.ExitStack() as stack:
        # Fail on a port in use before minutes of loading.
        listener = stack.enter_context(listening_socket(settings.host, settings.port, "--port or --host"))
        listeners = {
            name: stack.enter_context(listening_socket(*address))
            for name, room in doors().items()
            if (address := room.address(settings, has_keys=len(keys) > 0)) is not None
        }
        status = contextlib.ExitStack()

        def on_loaded(failure: Exception | None) -> None:
            status.close()
            if failure is not None:
                failures.append(failure)
                server.should_exit = True
            elif not quiet:
                typer.echo(f"listening on {_url(listener)} ({service.bundles.names[0]})", err=True)
                for name, socket_ in listeners.items():
                    typer.echo(f"listening on {_url(socket_, 'tcp')} ({name.capitalize()})", err=True)

        app = create_app(_source(bundle, engine), settings, keys, named=named, on_loaded=on_loaded)
        service: Service = app.state.service
        server = Server(app, settings, listeners)
        loading = f"loading {bundle or 'the built-in voice'} … (status at {_url(listener)}/ready)"
        status.enter_context(status_line(loading, shown=not quiet))
        with status, count_suspicious_warnings(service.metrics), _ignore_reraised_sigterm():
            server.run(sockets=[listener])
    if failures:
        raise failures[0]


def _source(path: str | None, engine: Engine) -> Source:
    def unloaded() -> Unloaded:
        bundle = open_with_engine(path, engine)
        size = sum(file.bytes for file in bundle.manifest.files_of(bundle.precision).values())
        return Unloaded(size, bundle.architecture.generation, partial(load_voxcpm, bundle, engine))

    return unloaded


@contextlib.contextmanager
def _ignore_reraised_sigterm() -> Iterator[None]:
    """Ignore the SIGTERM that uvicorn re-raises after draining."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def listening_socket(host: str, port: int, options: str) -> socket.socket:
    """Open a listening socket. options: the command-line options that chose its address.

    Raises InputError if the address is in use or not local.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else "not a host name"
        place = f"{host} port {port}"
        raise InputError(f"cannot listen on {place} ({reason}); choose another {options}") from None


def _url(listener: socket.socket, scheme: str = "http") -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
