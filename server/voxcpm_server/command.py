"""The command `voxcpm-coreml serve`: its help needs no extra."""

from __future__ import annotations

from voxcpm_runtime.commands.shared_arguments import BundleArgument, Engine, Quiet, takes_groups
from voxcpm_server.rooms import AllSettings


@takes_groups
def serve(
    *, bundle: BundleArgument = None, settings: AllSettings, engine: Engine, quiet: Quiet = False
) -> None:
    """Serve speech over HTTP with OpenAI's API. Default: the built-in voice on 127.0.0.1:8000."""
    from voxcpm_server.process import serve_until_signal

    serve_until_signal(bundle, settings, engine, quiet=quiet)
