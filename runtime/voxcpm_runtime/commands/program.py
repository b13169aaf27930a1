"""The program `voxcpm-coreml`, which is interrupted in one line even while it imports the command line."""

import sys


def main() -> int:
    """Run the command line. Returns its exit code."""
    try:
        from voxcpm_runtime.commands.cli import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        return 130
