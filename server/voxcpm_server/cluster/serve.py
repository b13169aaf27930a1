"""`serve --ray`: replicas of the app on a Ray cluster, behind Ray Serve's proxy.

client ─► proxy on the head ─► replica with the fewest requests: the app of `application.py` ─► streamed bytes
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from dataclasses import replace
from typing import Any

import ray
import typer
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, BackpressureConfig, HTTPOptions, ProxyLocation
from ray.serve.schema import LoggingConfig

from voxcpm_constants.errors import first_line
from voxcpm_constants.progress_lines import status_line
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime import InputError, VoxCPMError
from voxcpm_runtime.commands.shared_arguments import Engine, load_voxcpm, open_with_engine
from voxcpm_server.application import create_app
from voxcpm_server.cluster.cluster import LOCAL, check_cluster, cluster, open_same_bundle, portable_name
from voxcpm_server.cluster.options import ClusterSettings
from voxcpm_server.errors import RETRY_SECONDS
from voxcpm_server.middleware.authentication import Keys
from voxcpm_server.middleware.metrics import count_suspicious_warnings
from voxcpm_server.process import listening_socket

_APP = "voxcpm-coreml"
_ERROR_PREFIX = "voxcpm-coreml error: "
# Requests beyond those speaking and waiting, so that lists and probes work, and rejections come from the app.
_SPARE_REQUESTS = 16
_ATTEMPTS = 2
# Settings that only a single server supports, some of optional rooms, and their flags.
_SINGLE_SERVER_ONLY = {
    "bundles": "--bundle", "idle_unload": "--idle-unload", "jobs_folder": "--jobs-folder", "wyoming": "--wyoming"
}  # fmt: skip
_POLL_SECONDS = 1.0


class Replica:
    """A replica of the app. digest: that of the command's bundle."""

    def __init__(
        self, name: str | None, engine: Engine, digest: str, settings: ClusterSettings, keys: Keys
    ) -> None:
        try:
            tts = load_voxcpm(open_same_bundle(name, engine, digest), engine)
            self._app = create_app(tts, settings, keys, replicated=True)
        except VoxCPMError as error:
            # Ray Serve reports an error's message among other lines; the prefix marks it.
            raise RuntimeError(f"{_ERROR_PREFIX}{ray.util.get_node_ip_address()}: {error}") from None
        # For the lifetime of the process.
        self._warnings = count_suspicious_warnings(self._app.state.service.metrics)
        self._warnings.__enter__()

    def __serve_build_asgi_app__(self) -> Any:
        """The app, for Ray Serve."""
        return self._app


def serve_on_ray(
    name: str | None, engine: Engine, settings: ClusterSettings, keys: Keys, *, quiet: bool
) -> None:
    """Serve until a signal. Raises InputError if the cluster cannot be reached or cannot serve."""
    address = settings.ray_address or LOCAL
    check_cluster(address)
    settings = _cluster_settings(settings, address)
    bundle = open_with_engine(name, replace(engine, threads=None))
    engine = replace(engine, precision=bundle.precision, verify=False)
    with status_line("starting replicas …", shown=not quiet) as note, cluster(address):
        stop = threading.Event()

        def end(*_: Any) -> None:
            stop.set()
            # A second Ctrl-C interrupts.
            signal.signal(signal.SIGINT, signal.default_int_handler)

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        deployment = _deployment(engine, settings, address)
        try:
            _start(settings, deployment.bind(portable_name(name), engine, bundle.digest, settings, keys))
            note("")
            if not quiet:
                typer.echo(f"listening on http://{settings.host}:{settings.port} (Ray Serve)", err=True)
            while not stop.wait(_POLL_SECONDS):
                if not ray.is_initialized():
                    raise InputError(f"lost connection to Ray at {address}")
            # Replicas stop after their last response, or after `--drain-seconds`.
            serve.delete(_APP)
        finally:
            serve.shutdown()


def _cluster_settings(settings: ClusterSettings, address: str) -> ClusterSettings:
    """The settings for all machines. Raises InputError for options that only a single server supports."""
    folder, aliases, port = settings.voices_folder, settings.voice_aliases, settings.port
    for name, option in _SINGLE_SERVER_ONLY.items():
        if getattr(settings, name, None) not in (None, []):
            raise InputError(f"{option} is not supported with --ray; omit one of them")
    if address == LOCAL:
        # Fail on a port in use now, as Ray Serve would retry for a minute; 0 becomes a free port.
        with listening_socket(settings.host, port, "--port or --host") as listener:
            port = listener.getsockname()[1]
    elif folder is None:
        raise InputError("a cluster requires --voices-folder, a folder shared by all machines")
    elif not port:
        raise InputError("--port 0: expected a fixed port on the cluster's head")
    folder, aliases = folder and user_path(folder).absolute(), aliases and user_path(aliases).absolute()
    # Jobs need a single server; the keys themselves are not sent to other machines.
    changed: dict[str, Any] = {"max_jobs": 0} if hasattr(settings, "max_jobs") else {}
    changed["lexicon"] = [user_path(path).absolute() for path in settings.lexicon or ()]
    changed |= {"api_key": None, "api_key_file": None, "port": port}
    return replace(settings, voices_folder=folder, voice_aliases=aliases, **changed)


def _deployment(engine: Engine, settings: ClusterSettings, address: str) -> Any:
    # Raises InputError if this machine is too small for the replicas, or Serve already runs on the cluster.
    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", "serve")
    except ValueError:
        pass  # no such actor
    else:
        advice = "stop it (`serve shutdown`), or use another cluster"
        raise InputError(f"Ray Serve already runs on the cluster at {address}; {advice}")
    concurrency, minimum, maximum = settings.concurrency, settings.replicas, settings.max_replicas or 0
    threads = engine.threads or 1
    available, needed = ray.cluster_resources().get("CPU", 0), threads * minimum
    # Machines may still join a cluster.
    if address == LOCAL and needed > available:
        message = f"{minimum} replicas need {needed} CPUs, this machine has {available:g}"
        raise InputError(f"{message}; reduce --replicas or --threads")
    count: dict[str, Any] = {"num_replicas": minimum}
    if maximum > minimum:
        bounds = {"min_replicas": minimum, "max_replicas": maximum}
        count = {"autoscaling_config": AutoscalingConfig(**bounds, target_ongoing_requests=concurrency)}
    waiting = settings.queue + _SPARE_REQUESTS
    return serve.deployment(
        serve.ingress()(Replica),
        name="speech",
        ray_actor_options={"num_cpus": threads},
        # An open websocket counts as a request.
        max_ongoing_requests=concurrency + waiting + settings.max_conversations,
        max_queued_requests=waiting,
        # Requests that the proxy rejects never reach the app; their response is Ray's.
        backpressure_config=BackpressureConfig(retry_after_s=float(RETRY_SECONDS)),
        graceful_shutdown_timeout_s=settings.drain_seconds,
        graceful_shutdown_wait_loop_s=0.5,
        max_constructor_retry_count=_ATTEMPTS,
        **count,
    )


def _start(settings: ClusterSettings, app: Any) -> None:
    """Deploy the app and wait until all replicas are ready. Raises InputError with the reason on failure."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    level = logging.INFO if settings.access_log else logging.ERROR
    logs = LoggingConfig(log_level=level, enable_access_log=settings.access_log)
    try:
        http = HTTPOptions(host=settings.host, port=settings.port)
        serve.start(ProxyLocation.HeadOnly, http, logging_config=logs)
        serve.run(app, name=_APP, route_prefix="/", logging_config=logs)
    except (RuntimeError, ValueError, RayError) as error:
        reasons = [f"Ray Serve did not start ({first_line(error)})", str(error)]
        with contextlib.suppress(Exception):
            deployments = serve.status().applications[_APP].deployments
            reasons += [deployment.message for deployment in deployments.values()]
        errors = [text.partition(_ERROR_PREFIX)[2] for text in reasons if _ERROR_PREFIX in text]
        raise InputError([*errors, *reasons][0].strip().splitlines()[0]) from None
