"""Operators of our own for ONNX Runtime, compiled once per machine: RowProduct and Snake (`kernels.cpp`).

They need a C++ compiler and a processor that they were measured on. Elsewhere ONNX Runtime's operators compute the
same, slower.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import warnings
from pathlib import Path

from voxcpm_constants.user_folders import CACHE_VARIABLE
from voxcpm_runtime.backends.compilation import CompiledPackage
from voxcpm_runtime.backends.machine import chip, cpu_features

ROW_PRODUCT, SNAKE = "RowProduct", "Snake"
_NEEDS = {ROW_PRODUCT: {"AVX-512", "VNNI"}, SNAKE: {"AVX2"}}
"""Operator -> features of the processor (`cpu_features`)."""

_SOURCE, _PRODUCTS = (Path(__file__).with_name(name) for name in ("kernels.cpp", "products.h"))
_FILE = "kernels.so"
# Without contraction of products and sums the results are those of ONNX Runtime's operators, bit for bit.
_FLAGS = [
    *("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
]
_COMPILE_SECONDS = 120
# Where the cache cannot be written, the library is in a temp folder that is removed with one of these.
_PACKAGES: list[CompiledPackage] = []


def available_operators() -> frozenset[str]:
    """The names of the operators that this machine has; the first call may compile them."""
    return frozenset() if kernel_library() is None else _operators()


def kernel_library() -> Path | None:
    """The compiled operators, in the user's cache; None without a compiler (`$CXX`, or `c++`) or a fitting processor.

    A compiler that fails, or a library that cannot be loaded, is a warning.
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
    """The compiler's command; empty without one."""
    command = os.environ.get("CXX", "c++").split()
    return command if command and shutil.which(command[0]) else []


@functools.cache
def _library() -> Path | None:
    compiler = _compiler()
    if not compiler or not _operators():
        return None

    def compile_with(source: Path, folder: Path) -> None:
        folder.mkdir()
        wanted = [f"-DHAS_{name}" for name in sorted(_operators())]
        command = [*compiler, *_FLAGS, *wanted, str(source), "-o", str(folder / _FILE)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMPILE_SECONDS)  # noqa: S603 - the user's compiler

    digest = hashlib.sha256(_SOURCE.read_bytes() + _PRODUCTS.read_bytes()).hexdigest()
    machine = hashlib.sha256(f"{chip()}{cpu_features()}{_FLAGS}".encode()).hexdigest()[:16]
    package = CompiledPackage(_SOURCE, digest, compile_with, f"{machine}.kernels")
    _PACKAGES.append(package)
    try:
        library = package.path()[0] / _FILE
        ctypes.CDLL(str(library))  # fails if it is damaged, or in a file system without execution
    except (OSError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        reason = next((line for line in lines if "error" in line), "".join(lines[:1]))
        warnings.warn(
            f"faster operators cannot be compiled or loaded ({reason}); set CXX to another C++ compiler, "
            f"{CACHE_VARIABLE} to another folder, or CXX to nothing to do without them",
            stacklevel=2,
        )
        return None
    return library
