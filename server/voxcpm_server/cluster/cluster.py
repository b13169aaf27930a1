"""A Ray cluster: reaching one, or starting one on this machine, and leaving it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

import ray

from voxcpm_constants.errors import first_line
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime import InputError
from voxcpm_runtime.commands.shared_arguments import Engine, opened

LOCAL, _RUNNING_HERE = "local", "auto"
_PATIENCE_SECONDS = 5.0


@contextlib.contextmanager
def cluster(address: str) -> Iterator[None]:
    """A connection to a Ray cluster while open.

    address: `HOST:PORT` of its head, `auto` for the one that runs on this machine, `local` for a new one here, which
    ends with the connection. Raises InputError if it cannot be reached.
    """
    # Ray would report usage to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    from ray._private import worker

    # It prints on standard output what a dying machine last logged; there is no option against it.
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            # As in the runtime's commands: with more threads, sums would round differently.
            runtime_env={"env_vars": {"OPENBLAS_NUM_THREADS": "1"}},
            **({"include_dashboard": False} if address == LOCAL else {}),
        )
    # Ray raises RuntimeError for another release, and a bare Exception for a node that starts too slowly.
    except Exception as error:  # noqa: BLE001
        raise InputError(f"Ray at {address}: cannot be reached ({first_line(error)})") from None
    try:
        yield
    finally:
        ray.shutdown()


def check_cluster(address: str, device: str) -> None:
    """Raises InputError for an address where no cluster answers, and for a device that processes cannot share."""
    kind, _, index = device.partition(":")
    if device == "auto":
        message = "the machines of a cluster may have different devices; give --device cpu or --device cuda"
        raise InputError(f"--device auto: {message}")
    if index:
        raise InputError(f"--device {device}: Ray chooses the GPU of each process; give --device {kind}")
    if address in (LOCAL, _RUNNING_HERE):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise InputError(f"expected HOST:PORT of a Ray cluster's head, auto or local, got {address!r}")
    try:
        # Ray itself would try for a minute.
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = f"cannot be reached ({first_line(error)})"
        advice = "is it the port of the head, as `ray start --head` says it?"
        raise InputError(f"Ray at {address}: {reason}; {advice}") from None


def name_everywhere(bundle: str | None) -> str | None:
    """The name of a bundle for other machines: the whole path of a folder, otherwise its hub id."""
    if bundle is None or not user_path(bundle).is_dir():
        return bundle
    return str(user_path(bundle).resolve())


def same_bundle(name: str | None, engine: Engine, digest: str) -> Any:
    """The bundle on this machine. Raises InputError if its digest is another than the command's, and as `opened`."""
    bundle = opened(name, engine)
    if bundle.digest != digest:
        raise InputError(f"{bundle.folder}: not the command's bundle; copy the same files to all machines")
    return bundle
