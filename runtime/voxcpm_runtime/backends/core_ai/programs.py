"""Core AI programs, verified, and compiled once per machine by Apple's compiler in a child process.

The compiler ends its process at a damaged program, an unknown version or a full disk. So it runs in a child process,
which this module is when it is started as a program.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path

from voxcpm_constants.errors import BundleError, first_line, os_reason
from voxcpm_constants.manifest import record_file
from voxcpm_runtime.backends.compilation import CompiledPackage, end_with_the_parent, mark, run_child
from voxcpm_runtime.bundle.verified_files import check_recorded, record_files

COMPILED = ".aimodelx"
CORE_AI_PACKAGE = "coreai-core"
_PROGRAM, _HASH = "main.mlirb", "main.hash"


def check_program(program: Path) -> None:
    """Raises BundleError for a program whose content does not match its hash file."""
    code, digest = program / _PROGRAM, program / _HASH
    for path in (code, digest):
        if not path.is_file():
            raise BundleError(
                f"{path}: missing from the Core AI program; copy the bundle again or convert again"
            )
    if record_file(code).sha256 != digest.read_bytes().hex():
        raise BundleError(f"{code}: content does not match {_HASH}; copy the bundle again or convert again")


def compiled_program(program: Path, digest: str) -> tuple[Path, CompiledPackage]:
    """The compiled form of a program for this machine, and what keeps it there. digest: of the program's content.

    It lies in the user's cache; one that is not whole is made again. Raises BundleError.
    """
    kind = f"{CORE_AI_PACKAGE}-{version(CORE_AI_PACKAGE)}{COMPILED}"
    compiled = CompiledPackage(program, digest, compile_program, kind)
    try:
        path, new = compiled.path()
        if not new and not _is_whole(path):
            path, _ = compiled.path(damaged=mark(path))
    except OSError as error:
        raise BundleError(
            f"cannot write Core AI's compiled programs ({os_reason(error)}); free space"
        ) from None
    return path, compiled


def compile_program(program: Path, compiled: Path) -> None:
    """Compile a program into a new folder.

    Raises BundleError for a damaged program and for one that the compiler refuses, OSError for a full disk.
    """
    check_program(program)
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


def _is_whole(compiled: Path) -> bool:
    """Whether the files are those that were made: Core AI computes with altered code, or ends the process at it."""
    try:
        check_recorded(compiled)
    except BundleError:
        return False
    return True


def _main(program: str, compiled: str) -> None:
    """Compile and exit abruptly: Core AI's threads may abort an orderly exit."""
    end_with_the_parent()
    try:
        from coreai.authoring import AIModelAsset  # half a second, and only here

        # Not public, but coreai-core is pinned. The public `executable` compiles at every start, into a temporary
        # folder that stays if this process is killed.
        AIModelAsset.load(Path(program))._write_odix(Path(compiled))  # noqa: SLF001
    except Exception as error:  # noqa: BLE001 - the compiler raises any class
        sys.stderr.write(f"error: {first_line(error)}\n")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    _main(*sys.argv[1:])
