"""`serve --ray`: the same app in replicas on a Ray cluster, behind Ray Serve's proxy.

client ─► proxy on the head ─► replica with the fewest requests: the app of `application.py` ─► bytes as they are made
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import typer
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, BackpressureConfig, HTTPOptions, ProxyLocation
from ray.serve.schema import LoggingConfig

from voxcpm_constants.errors import first_line, os_reason
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime import InputError, VoxCPMError
from voxcpm_runtime.commands.shared_arguments import Engine, loaded, opened
from voxcpm_runtime.commands.status_line import status_line
from voxcpm_server.application import create_app
from voxcpm_server.cluster.cluster import LOCAL, check_address, check_device, cluster, everywhere
from voxcpm_server.cluster.options import ClusterSettings
from voxcpm_server.errors import RETRY_SECONDS
from voxcpm_server.middleware.authentication import Keys
from voxcpm_server.middleware.metrics import suspicious_warnings_counted

_APP = "voxcpm-coreml"
_CONTROLLER, _NAMESPACE = "SERVE_CONTROLLER_ACTOR", "serve"
_REFUSED = "voxcpm-coreml refuses: "
# Requests beyond those that speak and wait, so that lists and probes are answered, and refusals come from the app.
_SPARE_REQUESTS = 16
_ATTEMPTS = 2
_POLL_SECONDS = 1.0


class Replica:
    """The app on one machine of the cluster."""

    def __init__(
        self,
        name: str | None,
        engine: Engine,
        digest: str,
        settings: ClusterSettings,
        keys: Keys,
        mark: str | None,
    ) -> None:
        """Load the bundle. digest: of the bundle that the command was given. mark: a file in the folder of voices."""
        try:
            if mark is not None and not (settings.voices_folder or Path()).joinpath(mark).exists():
                raise InputError(
                    f"--voices-folder {settings.voices_folder} is not the command's folder on this machine; give one "
                    "that all machines share"
                )
            bundle = opened(name, engine)
            if bundle.digest != digest:
                raise InputError(
                    f"{bundle.folder} is another bundle than the command's; give all machines the same files"
                )
            self._tts = loaded(bundle, engine)
            self._app = create_app(self._tts, settings, keys, replicated=True)
        except VoxCPMError as error:
            # Ray Serve hands on the text of an error, among others.
            raise RuntimeError(f"{_REFUSED}{ray.util.get_node_ip_address()}: {error}") from None
        # For as long as the process lives.
        self._warnings = suspicious_warnings_counted(self._app.state.service.metrics)
        self._warnings.__enter__()

    def __serve_build_asgi_app__(self) -> Any:
        """The app, asked for by Ray Serve."""
        return self._app


def serve_on_ray(
    name: str | None, engine: Engine, settings: ClusterSettings, keys: Keys, *, quiet: bool
) -> None:
    """Serve until a signal.

    Raises InputError for a cluster that cannot be reached, or whose machines cannot serve.
    """
    with status_line("starting replicas …", shown=not quiet) as note:
        for url in _served(name, engine, settings, keys):
            note("")
            if not quiet:
                typer.echo(f"listening on {url} (Ray Serve)", err=True)


def _served(name: str | None, engine: Engine, settings: ClusterSettings, keys: Keys) -> Iterator[str]:
    """Serve until a signal. Yields the URL once it listens."""
    address = settings.ray_address or LOCAL
    check_address(address)
    check_device(engine.device)
    settings = _for_machines(settings, address)
    bundle = opened(name, replace(engine, device="cpu", threads=None))
    engine = replace(engine, precision=bundle.precision, verify=False)
    with contextlib.ExitStack() as stack:
        mark = None if address == LOCAL else stack.enter_context(_marked(settings.voices_folder))
        stack.enter_context(cluster(address))
        stop = stack.enter_context(_stopped_by_signals())
        _check_room(address, engine, settings)
        arguments = (everywhere(name), engine, bundle.digest, settings, keys, mark)
        _start(settings, _deployment(engine, settings).bind(*arguments))
        stack.callback(serve.shutdown)
        yield f"http://{settings.host}:{settings.port}"
        while not stop.wait(_POLL_SECONDS):
            if not ray.is_initialized():
                raise InputError(f"Ray at {address}: the connection is lost")
        # Replicas end when they have answered, or after `--drain-seconds`.
        serve.delete(_APP)


def _for_machines(settings: ClusterSettings, address: str) -> ClusterSettings:
    """The settings as all machines understand them. Raises InputError for what only one machine can do."""
    folder, port = settings.voices_folder, settings.port
    for option in settings.only_alone():
        raise InputError(f"{option} does not work with --ray; leave it out, or serve without --ray")
    if address == LOCAL:
        port = _free_port(settings.host, port)
    elif folder is None:
        raise InputError(
            "on a cluster, voices are in a folder that all machines share: name it with --voices-folder"
        )
    elif not port:
        raise InputError("--port 0: on a cluster, name the port of the head to listen on")
    return replace(
        settings.for_replica(),
        port=port,
        voices_folder=None if folder is None else user_path(folder).absolute(),
        voice_aliases=settings.voice_aliases and user_path(settings.voice_aliases).absolute(),
    )


def _free_port(host: str, port: int) -> int:
    """The port, or for 0 one that is free. Raises InputError for one in use; Ray Serve would try for a minute."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        with socket.create_server((host, port), family=family) as listener:
            return int(listener.getsockname()[1])
    except (OSError, UnicodeError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else "no host name"
        raise InputError(
            f"{host} port {port}: cannot listen there ({reason}); choose another --port or --host"
        ) from None


@contextlib.contextmanager
def _marked(folder: Path | None) -> Iterator[str]:
    """The name of a file in the folder, by which machines know that they have the same one."""
    mark = f".shared-{uuid.uuid4().hex}"
    try:
        folder = folder or Path()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / mark).touch()
    except OSError as error:
        raise InputError(f"--voices-folder {folder}: cannot be written ({os_reason(error)})") from None
    try:
        yield mark
    finally:
        (folder / mark).unlink(missing_ok=True)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that the first SIGTERM or Ctrl-C sets; a second Ctrl-C interrupts."""
    stop = threading.Event()

    def end(number: int, frame: Any) -> None:
        if stop.is_set() and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _needs(engine: Engine) -> dict[str, float]:
    gpus = 0 if engine.device == "cpu" else 1
    return {"num_cpus": engine.threads or 1, **({"num_gpus": gpus} if gpus else {})}


def _check_room(address: str, engine: Engine, settings: ClusterSettings) -> None:
    """Raises InputError if this machine has no room for the replicas, or Serve runs on the cluster already."""
    with contextlib.suppress(ValueError):
        ray.get_actor(_CONTROLLER, _NAMESPACE)
        raise InputError(
            f"Ray Serve runs on the cluster at {address} already; end it there (`serve shutdown`), or use another"
        )
    if address != LOCAL:
        # Machines may still come.
        return
    there = ray.cluster_resources()
    for what, each in (("CPU", _needs(engine)["num_cpus"]), ("GPU", _needs(engine).get("num_gpus", 0))):
        wanted = each * settings.replicas
        if wanted > there.get(what, 0):
            raise InputError(
                f"{settings.replicas} replicas need {wanted:g} {what}s, this machine has {there.get(what, 0):g}; "
                "give fewer --replicas, or fewer --threads"
            )


def _deployment(engine: Engine, settings: ClusterSettings) -> Any:
    maximum = settings.max_replicas or settings.replicas
    count: dict[str, Any] = {"num_replicas": settings.replicas}
    if maximum > settings.replicas:
        scaling = AutoscalingConfig(
            min_replicas=settings.replicas,
            max_replicas=maximum,
            target_ongoing_requests=settings.concurrency,
        )
        count = {"autoscaling_config": scaling}
    return serve.deployment(
        serve.ingress()(Replica),
        name="speech",
        ray_actor_options=_needs(engine),
        # A websocket is a request for as long as it is open.
        max_ongoing_requests=settings.concurrency
        + settings.queue
        + settings.max_conversations
        + _SPARE_REQUESTS,
        max_queued_requests=settings.queue + _SPARE_REQUESTS,
        # What the proxy refuses never comes to the app; its answer has a text of Ray's own.
        backpressure_config=BackpressureConfig(retry_after_s=float(RETRY_SECONDS)),
        graceful_shutdown_timeout_s=settings.drain_seconds,
        graceful_shutdown_wait_loop_s=0.5,
        max_constructor_retry_count=_ATTEMPTS,
        **count,
    )


def _start(settings: ClusterSettings, app: Any) -> None:
    """Deploy the app, and wait until all replicas serve. Raises InputError with the reason if they cannot."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    logs = LoggingConfig(
        log_level=logging.INFO if settings.access_log else logging.ERROR,
        enable_access_log=settings.access_log,
    )
    try:
        serve.start(
            ProxyLocation.HeadOnly,
            HTTPOptions(host=settings.host, port=settings.port),
            logging_config=logs,
        )
        serve.run(app, name=_APP, route_prefix="/", logging_config=logs)
    except (RuntimeError, ValueError, RayError) as error:
        reasons = [*_status_messages(), str(error)]
        serve.shutdown()
        raise InputError(_first_reason(reasons)) from None


def _status_messages() -> list[str]:
    with contextlib.suppress(Exception):
        app = serve.status().applications[_APP]
        return [app.message, *(deployment.message for deployment in app.deployments.values())]
    return []


def _first_reason(reasons: list[str]) -> str:
    """What a replica has said, or what Ray Serve says, on one line."""
    for reason in reasons:
        _, found, said = reason.partition(_REFUSED)
        if found:
            return first_line(RuntimeError(said))
    return f"Ray Serve did not start ({first_line(RuntimeError(reasons[-1]))})"
