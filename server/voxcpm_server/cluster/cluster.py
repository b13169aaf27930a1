"""A Ray cluster: reaching one, or starting one on this machine, and leaving it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator

import ray
from ray._private.services import find_gcs_addresses

from voxcpm_constants.errors import first_line
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime import InputError

LOCAL, RUNNING_HERE = "local", "auto"
_CLIENT = "ray://"
_PATIENCE_SECONDS = 5.0
WORKER_ENVIRONMENT = {"env_vars": {"OPENBLAS_NUM_THREADS": "1"}}
"""The environment of processes on the cluster, as of the runtime's commands: with more threads, sums would round
differently."""


@contextlib.contextmanager
def cluster(address: str) -> Iterator[None]:
    """A connection to a Ray cluster while open.

    address: `HOST:PORT` of its head, `auto` for the one that runs on this machine, `local` for a new one here, which
    ends with the connection. Raises InputError for one that cannot be reached.
    """
    check_address(address)
    # Ray would report what is used to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    _silence()
    only_local = {"include_dashboard": False} if address == LOCAL else {}
    if address == RUNNING_HERE and not os.environ.get("RAY_ADDRESS") and not find_gcs_addresses():
        raise InputError(
            "no Ray cluster runs on this machine; give HOST:PORT of its head, or local for a new one"
        )
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            runtime_env=WORKER_ENVIRONMENT,
            **only_local,
        )
    # Ray raises what it likes: RuntimeError for another release, a bare Exception for a node that starts too slowly.
    except Exception as error:  # noqa: BLE001
        raise InputError(f"Ray at {address}: cannot be reached ({first_line(error)})") from None
    try:
        yield
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Raises InputError for what is no address of a cluster, and for one where nothing answers."""
    if address in (LOCAL, RUNNING_HERE):
        return
    if address.startswith(_CLIENT):
        raise InputError(
            f"{address}: Ray's client is not supported; run the command on a machine of the cluster, and give "
            "auto or HOST:PORT of its head"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"expected HOST:PORT of a Ray cluster's head, auto or local, got {address!r}")
    try:
        # Ray itself would try for a minute.
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"Ray at {address}: cannot be reached ({first_line(error)}); is it the port of the head, as `ray start "
            "--head` says it?"
        ) from None


def check_device(device: str) -> None:
    """Raises InputError for one GPU of several, which Ray chooses, and for `auto`, which machines may differ in."""
    if device == "auto":
        raise InputError(
            "--device auto: the machines of a cluster may have different devices; give --device cpu or --device cuda"
        )
    kind, _, index = device.partition(":")
    if index:
        raise InputError(f"--device {device}: Ray chooses the GPU of each process; give --device {kind}")


def everywhere(bundle: str | None) -> str | None:
    """The name of a bundle for other machines: the whole path of a folder, otherwise its hub id."""
    if bundle is None or not user_path(bundle).is_dir():
        return bundle
    return str(user_path(bundle).resolve())


def machine_name(node_id: str) -> str:
    """The address of a machine of the cluster, for messages."""
    for node in ray.nodes():
        if node["NodeID"] == node_id:
            return str(node["NodeManagerAddress"])
    return node_id


def _silence() -> None:
    """Ray tells about itself, and prints on standard output what a machine that dies last logged, without a switch."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    from ray._private import worker

    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None
