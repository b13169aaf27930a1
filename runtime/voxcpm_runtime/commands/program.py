"""The program `voxcpm-coreml`, which is interrupted in one line, even while it imports the command line or exits."""

import atexit
import os
import signal
import sys

_INTERRUPTED = 130


def main() -> int:
    """Run the command line. Returns its exit code."""
    try:
        from voxcpm_runtime.commands.cli import main as run

        code = run()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        code = _INTERRUPTED
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    if code == _INTERRUPTED:
        # Not Python's own end: it aborts threads within C++ for which a second Ctrl-C ended the wait.
        atexit._run_exitfuncs()  # noqa: SLF001 - it has no public name
        os._exit(code)
    return code
