"""Packages compiled once per machine, into the user's cache.

Compiling takes minutes for a large package. The cache key is the digest of the package and the compiler's version (for
Core ML the build of macOS). Apple's compilers may crash, hang or hold the GIL for minutes, so they run in a child
process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from voxcpm_constants.core_ml_errors import core_ml_reason
from voxcpm_constants.errors import os_reason, warn
from voxcpm_constants.user_folders import CACHE_VARIABLE, cache_folder

LOCK_SECONDS = 1800
"""Timeout of the lock and of the child process, longer than any known compilation."""
_FOLDER = "compiled"
_DIGITS = 32
"""Digits of the digest in the name of a cache entry."""

Compile = Callable[[Path, Path], None]
"""compile(package, output folder). Raises OSError if the folder cannot be created, and the compiler's errors."""


class CompiledPackage:
    """The compiled form of a package: in the user's cache, or in a temp folder that is removed with this object.

    digest: of the package's content. kind: the compiler's version and a suffix, such as "24F74.mlmodelc".
    """

    def __init__(self, package: Path, digest: str, compile_with: Compile, kind: str) -> None:
        self._package, self._compile, self._kind = package, compile_with, kind
        self._digest = digest[:_DIGITS]
        self._temp_form: Path | None = None

    def before_first_load(self, compiled: Path, use: str, prepare: Callable[[], None]) -> None:
        """Call `prepare`, unless it succeeded before for this form and use. use: the function and compute unit."""
        record = cache_folder(_FOLDER) / f"{self._digest}-{self._kind}.{use}.loaded"
        with contextlib.suppress(OSError):
            if record.read_text(encoding="utf-8") == str(mark(compiled)):
                return
        prepare()
        with contextlib.suppress(OSError):
            record.write_text(str(mark(compiled)), encoding="utf-8")

    def path(self, damaged: int | None = None) -> tuple[Path, bool]:
        """The compiled form, and whether this call compiled it.

        damaged: `mark` of a form that cannot be loaded; it is recompiled, unless another process has done so already.
        If the cache cannot be written, the package is compiled into a temp folder, with a warning. Raises the
        compiler's errors.
        """
        if self._temp_form is not None:
            return self._temp_form, False
        try:
            return self.cached(damaged)
        except (OSError, NotImplementedError) as error:
            reason = os_reason(error) if isinstance(error, OSError) else "the file system has no locks"
            warn(
                f"{cache_folder(_FOLDER)}: compiled step models cannot be saved ({reason}), so every start recompiles "
                f"them; free space, or set {CACHE_VARIABLE} to another folder"
            )
        folder = Path(tempfile.mkdtemp(prefix="voxcpm-coreml-compiled-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        compiled = folder / f"{self._package.stem}-{self._kind}"
        self._compile(self._package, compiled)
        self._temp_form = compiled
        return compiled, True

    def cached(self, damaged: int | None = None) -> tuple[Path, bool]:
        """The compiled form in the user's cache, and whether this call compiled it.

        Raises OSError if the cache cannot be written or locked in time, NotImplementedError if its file system has no
        locks, and the compiler's errors.
        """
        root = cache_folder(_FOLDER)
        entry = root / f"{self._digest}-{self._kind}"
        if damaged is None and entry.is_dir():
            return entry, False
        from filelock import FileLock  # slow to import, and not needed for a cache hit

        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{entry.name}.lock", timeout=LOCK_SECONDS):
            if entry.is_dir() and mark(entry) != damaged:
                return entry, False
            # Damaged, from an earlier build of the system, or left by a killed process.
            for old in root.glob(f"*{self._digest}-*"):
                if old.is_dir():
                    shutil.rmtree(old, ignore_errors=True)
                elif old.suffix != ".lock":
                    old.unlink(missing_ok=True)
            unfinished = entry.with_name(f".{entry.name}")
            try:
                self._compile(self._package, unfinished)
                unfinished.replace(entry)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
        return entry, True


def mark(compiled: Path) -> int:
    """A number that changes when a compiled form is replaced; 0 if it is gone."""
    try:
        return compiled.stat().st_mtime_ns
    except OSError:
        return 0


def run_child(module: str, *arguments: str) -> tuple[int, str]:
    """Run a module as a child process. Returns its exit code, and its error or how it ended in one line.

    After LOCK_SECONDS the child is killed, which counts as exit code 1.
    """
    with tempfile.TemporaryFile() as output:
        started = python_child(
            ["-m", module, *arguments], stdin=subprocess.PIPE, stdout=output, stderr=output
        )
        with started as child:
            try:
                code = child.wait(LOCK_SECONDS)
            except subprocess.TimeoutExpired:
                return 1, f"no answer within {LOCK_SECONDS} s"
            finally:
                child.kill()  # if it still runs
        output.seek(0)
        said = output.read()
    errors = [line.partition("error: ")[2] for line in _lines(said) if "error: " in line]
    return code, next(iter(errors), how_it_ended(code, said))


def python_child(arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start Python as a child process, without modules of the working directory (from Python 3.11 on)."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    return subprocess.Popen([sys.executable, *arguments], env=environment, **options)  # noqa: S603 - our own programs


def how_it_ended(code: int, output: bytes = b"") -> str:
    """The signal or exit code of a child process, and the last line of its output."""
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return ": ".join((name, *_lines(output)[-1:]))


def _lines(output: bytes) -> list[str]:
    """The lines of a process's output that are not blank."""
    return [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]


def run_in_child(task: Callable[[], object]) -> NoReturn:
    """In the child: run a task, and exit. Also exit with the parent or on Ctrl-C, even while native code holds the GIL.

    A watchdog process waits for standard input to close, as no thread of this one could. It is forked first, as
    processes with threads should not fork.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    child = os.getpid()
    if os.fork() == 0:
        os.read(sys.stdin.fileno(), 1)
        if os.getppid() == child:
            os.kill(child, signal.SIGKILL)
        os._exit(0)
    try:
        task()
    except Exception as error:  # noqa: BLE001 - Apple's frameworks raise any class
        os.write(sys.stderr.fileno(), f"\nerror: {core_ml_reason(error)}\n".encode())
        os._exit(1)
    # Exit immediately: Core ML's threads would delay an orderly exit, and Core AI's may abort it.
    os._exit(0)
