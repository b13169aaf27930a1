"""The options of several machines."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from voxcpm_runtime import InputError
from voxcpm_runtime.commands.status_line import status_line
from voxcpm_server.settings import Settings

if TYPE_CHECKING:
    from voxcpm_runtime.commands.shared_arguments import Engine
    from voxcpm_server.middleware.authentication import Keys

_cluster = functools.partial(typer.Option, rich_help_panel="More than one machine")


@dataclass(frozen=True)
class ClusterSettings(Settings):
    """Where replicas of a server run, and how many."""

    ray: Annotated[
        bool, _cluster("--ray", help="Serve with Ray Serve, on all machines of a cluster (extra ray).")
    ] = False
    ray_address: Annotated[
        str | None,
        _cluster(
            metavar="ADDRESS",
            help="HOST:PORT of the cluster's head, auto for the one that runs here, or local for a new one on this "
            "machine. Default: local.",
        ),
    ] = None
    replicas: Annotated[int, _cluster(min=1, max=10_000, help="Processes that speak.")] = 1
    max_replicas: Annotated[
        int | None,
        _cluster(min=1, max=10_000, help="Processes when many requests come. Default: those of --replicas."),
    ] = None

    def check(self) -> None:
        """Raises InputError for options that contradict each other."""
        super().check()
        if not self.ray and (self.ray_address, self.replicas, self.max_replicas) != (None, 1, None):
            raise InputError("--ray-address, --replicas and --max-replicas need --ray")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise InputError(
                f"--max-replicas: expected at least --replicas {self.replicas}, got {self.max_replicas}"
            )

    def serve_elsewhere(self, bundle: str | None, engine: Engine, keys: Keys, *, quiet: bool) -> bool:
        """Serve on a cluster until a signal, with --ray."""
        if not self.ray:
            return False
        # Ray is loaded, which takes seconds, only when it is asked for.
        from voxcpm_server.cluster.serve import serve_on_ray

        with status_line("starting replicas …", shown=not quiet) as note:
            for url in serve_on_ray(bundle, engine, self, keys):
                note("")
                if not quiet:
                    typer.echo(f"listening on {url} (Ray Serve)", err=True)
        return True
