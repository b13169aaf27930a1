"""Custom operators for ONNX Runtime, compiled once per machine: RowProduct and Snake (`kernels.cpp`).

They need a C++ compiler and a processor that they were measured on. Elsewhere ONNX Runtime's operators compute the
same, slower.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from voxcpm_constants.errors import BundleError, os_reason, warn
from voxcpm_constants.user_folders import CACHE_VARIABLE, cache_folder
from voxcpm_runtime.backends.compilation import CompiledPackage, mark
from voxcpm_runtime.backends.machine import chip, cpu_features
from voxcpm_runtime.bundle.verified_files import check_recorded, record_files

ROW_PRODUCT, SNAKE = "RowProduct", "Snake"
_NEEDS = {ROW_PRODUCT: {"AVX-512", "VNNI"}, SNAKE: {"AVX2"}}
"""Operator -> features of the processor (`cpu_features`)."""

_SOURCE, _PRODUCTS = Path(__file__).with_name("kernels.cpp"), Path(__file__).with_name("products.h")
_FILE = "kernels.so"
# Without contraction of products and sums the results are those of ONNX Runtime's operators, bit for bit.
_FLAGS = [
    *("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
]
_COMPILE_SECONDS = 30  # Compiling takes two to four
# Where the cache cannot be written, the library is in a temp folder that is removed with one of these.
_PACKAGES: list[CompiledPackage] = []


def available_operators() -> frozenset[str]:
    """The names of the operators that this machine has; the first call may compile them."""
    return frozenset() if kernel_library() is None else _operators()


def kernel_library() -> Path | None:
    """The compiled operators, in the user's cache; None without a compiler (`$CXX`, or `c++`) or a fitting processor.

    A compiler that fails or hangs, or a library that cannot be loaded, is a warning. So is a library that is not the
    compiled one, which is compiled again.
    """
    library = _library()
    if library is not None and not library.exists():  # the cache was cleared
        _library.cache_clear()
        library = _library()
    return library


def lacks_compiler() -> bool:
    """Whether only a compiler is missing for these operators."""
    return bool(_operators()) and not _compiler()


def _operators() -> frozenset[str]:
    return frozenset(name for name, needed in _NEEDS.items() if needed <= set(cpu_features()))


def _compiler() -> list[str]:
    """The compiler's command, with its path; empty without one."""
    name, *arguments = os.environ.get("CXX", "c++").split() or [""]
    path = shutil.which(name)
    return [path, *arguments] if path else []


@functools.cache
def _library() -> Path | None:
    compiler = _compiler()
    if not compiler or not _operators():
        return None

    digest = hashlib.sha256(_SOURCE.read_bytes() + _PRODUCTS.read_bytes()).hexdigest()
    machine = hashlib.sha256(f"{chip()}{cpu_features()}{_FLAGS}".encode()).hexdigest()[:16]
    # Size and time stand for the version, for which a compiler that hangs cannot be asked.
    program = Path(compiler[0]).stat()
    attempt = f"{digest}{machine}{compiler}{program.st_size}{program.st_mtime_ns}"
    hung = cache_folder("compiled") / f"{hashlib.sha256(attempt.encode()).hexdigest()[:32]}.hung"

    def compile_with(source: Path, folder: Path) -> None:
        if hung.exists():
            raise subprocess.SubprocessError(
                f"{compiler[0]} did not end at an earlier start; clear-cache lets it try again"
            )
        folder.mkdir()
        wanted = [f"-DHAS_{name}" for name in sorted(_operators())]
        try:
            _run([*compiler, *_FLAGS, *wanted, str(source), "-o", str(folder / _FILE)])
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                hung.touch()
            raise
        record_files(folder)

    package = CompiledPackage(_SOURCE, digest, compile_with, f"{machine}.kernels")
    _PACKAGES.append(package)
    try:
        folder, _ = package.path()
        try:
            check_recorded(folder)  # a damaged library may crash, or compute something else
        except BundleError as error:
            warn(f"faster operators in the cache are damaged and compiled again ({error})")
            folder, _ = package.path(damaged=mark(folder))
        library = folder / _FILE
        _ = ctypes.CDLL(str(library)).RegisterCustomOps  # fails in a file system without execution
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        reason = next((line for line in lines if "error" in line), "".join(lines[:1]))
        warn(
            f"faster operators cannot be compiled or loaded ({reason}); set CXX to another C++ compiler, "
            f"{CACHE_VARIABLE} to another folder, or CXX to nothing to do without them"
        )
        return None
    return library


def _run(command: list[str]) -> None:
    """Run a compiler. Raises SubprocessError if it fails or takes too long; then all its processes end."""
    # Not a pipe, which a process that outlives the compiler would keep open.
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(  # noqa: S603 - the user's compiler
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:  # not taken for an error of the cache
            raise subprocess.SubprocessError(f"{command[0]}: {os_reason(error)}") from None
        try:
            code = child.wait(_COMPILE_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if code:
            output.seek(0)
            said = output.read(1 << 16).decode(errors="replace")
            raise subprocess.CalledProcessError(code, command[0], stderr=said)
