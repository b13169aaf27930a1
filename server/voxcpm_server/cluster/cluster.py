"""Connect to a Ray cluster, or start one on this machine."""

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
from voxcpm_runtime.commands.shared_arguments import Engine, open_with_engine

LOCAL, _RUNNING_HERE = "local", "auto"
_PATIENCE_SECONDS = 5.0


@contextlib.contextmanager
def cluster(address: str) -> Iterator[None]:
    """Connect to a Ray cluster.

    address: `HOST:PORT` of its head, `auto` for the one running on this machine, `local` for a new one on this machine,
    which is shut down on exit. Raises InputError if the cluster cannot be reached.
    """
    # Ray sends usage statistics by default.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    from ray._private import worker

    # It prints the last logs of a dying node to stdout, with no option to disable that.
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            # As in the runtime's commands: with more threads, sums round differently.
            runtime_env={"env_vars": {"OPENBLAS_NUM_THREADS": "1"}},
            **({"include_dashboard": False} if address == LOCAL else {}),
        )
    # Ray raises RuntimeError for a version mismatch, and a bare Exception for a node that starts too slowly.
    except Exception as error:  # noqa: BLE001
        raise InputError(f"cannot connect to Ray at {address} ({first_line(error)})") from None
    try:
        yield
    finally:
        ray.shutdown()


def check_cluster(address: str) -> None:
    """Raises InputError for an unreachable address."""
    if address in (LOCAL, _RUNNING_HERE):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise InputError(f"expected HOST:PORT of a Ray cluster's head, auto or local, got {address!r}")
    try:
        # Ray itself would retry for a minute.
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = f"cannot connect to Ray at {address} ({first_line(error)})"
        advice = "expected the port of the head that `ray start --head` prints"
        raise InputError(f"{reason}; {advice}") from None


def portable_name(bundle: str | None) -> str | None:
    """A bundle's name that works on all machines: the absolute path of a folder, otherwise its hub id."""
    if bundle is None or not user_path(bundle).is_dir():
        return bundle
    return str(user_path(bundle).resolve())


def open_same_bundle(name: str | None, engine: Engine, digest: str) -> Any:
    """Open the bundle on this machine. Raises InputError if its digest differs, and the same as `open_with_engine`."""
    bundle = open_with_engine(name, engine)
    if bundle.digest != digest:
        raise InputError(f"{bundle.folder}: the bundle differs from the command's; copy it to all machines")
    return bundle
