"""Core AI programs, compiled once per machine by Apple's compiler in a child process.

The compiler ends its process at an unknown version or a full disk. So it runs in a child process, which this module is
when it is started as a program.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

from voxcpm_constants.errors import BundleError, os_reason
from voxcpm_runtime.backends.compilation import CompiledPackage, mark, run_child, run_in_child
from voxcpm_runtime.bundle.verified_files import check_recorded, record_files

CORE_AI_PACKAGE = "coreai-core"


def compiled_program(program: Path, digest: str) -> tuple[Path, CompiledPackage]:
    """The compiled form of a program for this machine, and what keeps it there. digest: of the program's content.

    One that is not whole is made again. Raises BundleError.
    """
    kind = f"{CORE_AI_PACKAGE}-{version(CORE_AI_PACKAGE)}.aimodelx"
    compiled = CompiledPackage(program, digest, compile_program, kind)
    try:
        path, new = compiled.path()
        if not new:
            try:
                # Core AI computes with altered code, or ends the process at it.
                check_recorded(path)
            except BundleError:
                path, _ = compiled.path(damaged=mark(path))
    except OSError as error:
        raise BundleError(
            f"cannot write Core AI's compiled programs ({os_reason(error)}); free space"
        ) from None
    return path, compiled


def compile_program(program: Path, compiled: Path) -> None:
    """Compile a program into a new folder.

    Raises BundleError for a program that the compiler refuses, OSError for a full disk.
    """
    compiled.mkdir()
    code, words = run_child(__name__, str(program.absolute()), str(compiled.absolute()))
    if code == -signal.SIGBUS:
        # The compiler writes by way of a mapped file.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if code != 0:
        raise BundleError(
            f"{program}: Core AI cannot compile it ({words}); convert again, or update {CORE_AI_PACKAGE}"
        )
    record_files(compiled)


def _compile_here(program: str, compiled: str) -> None:
    from coreai.authoring import AIModelAsset  # half a second, and only here

    # Not public, but coreai-core is pinned. The public `executable` compiles at every start, into a temporary folder
    # that stays if this process is killed.
    AIModelAsset.load(Path(program))._write_odix(Path(compiled))  # noqa: SLF001


if __name__ == "__main__":
    run_in_child(partial(_compile_here, *sys.argv[1:]))
