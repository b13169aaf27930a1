"""Options for several machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from voxcpm_runtime import InputError
from voxcpm_server.settings import Settings, options

_cluster = options("More than one machine")


@dataclass(frozen=True)
class ClusterSettings(Settings):
    """Number and placement of a server's replicas."""

    ray: Annotated[bool, _cluster("Serve on all machines of a Ray cluster (extra ray).", flags=["--ray"])] = (
        False
    )
    ray_address: Annotated[
        str | None,
        _cluster(
            "HOST:PORT of the cluster's head, auto for the cluster running here, or local for a new one on this "
            "machine. Default: local.", metavar="ADDRESS",
        ),
    ] = None  # fmt: skip
    replicas: Annotated[int, _cluster("Number of processes.", 1, 10_000)] = 1
    max_replicas: Annotated[
        int | None,
        _cluster("Maximum number of processes under load. Default: --replicas.", 1, 10_000),
    ] = None

    def check(self) -> None:
        """Raises InputError for options that contradict each other."""
        super().check()
        if not self.ray and (self.ray_address, self.replicas, self.max_replicas) != (None, 1, None):
            raise InputError("--ray-address, --replicas and --max-replicas need --ray")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            expected = f"expected at least --replicas {self.replicas}"
            raise InputError(f"--max-replicas: {expected}, got {self.max_replicas}")
