"""The program `voxcpm-coreml`, which is interrupted in one line even while it imports the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns its exit code. arguments: by default those of the process."""
    try:
        from voxcpm_runtime.commands.cli import main as run

        return run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        return 130
