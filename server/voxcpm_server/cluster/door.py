"""The door of this room: `serve --ray` serves here instead of in the command's process."""

from __future__ import annotations

from voxcpm_runtime.commands.shared_arguments import Engine
from voxcpm_server.cluster.options import ClusterSettings
from voxcpm_server.middleware.authentication import Keys


def serve_elsewhere(
    bundle: str | None, engine: Engine, settings: ClusterSettings, keys: Keys, *, quiet: bool
) -> bool:
    """With --ray, serve on a cluster until a signal. Returns whether it did."""
    if not settings.ray:
        return False
    # Lazily: importing Ray takes seconds.
    from voxcpm_server.cluster.serve import serve_on_ray

    serve_on_ray(bundle, engine, settings, keys, quiet=quiet)
    return True
