"""Compiling and loading with Core ML, in this process or first in a child.

coremltools never releases the GIL. Compiling takes minutes, and so does the first load of a compiled package on a
compute unit, whose result the system keeps; either may crash. So a child does both first.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from voxcpm_constants.errors import core_ml_reason
from voxcpm_runtime.backends.compilation import LOCK_SECONDS, end_with_the_parent, run_child
from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS

_SYSTEM_ERROR = 3
"""The exit code of a child that reports an error number."""


def compile_package(package: Path, compiled: Path) -> None:
    """Compile a package into a new folder. Raises what Core ML's compiler raises."""
    import coremltools as ct  # seconds, and on a Mac only

    ct.utils.compile_model(str(package), destination_path=str(compiled))


def load_function(compiled: Path, unit: str, function: str, reshapes: str) -> Any:
    """coremltools' model of a function, "" for the only one. reshapes: its hint for enumerated lengths, "" for none.

    Raises what Core ML raises.
    """
    import coremltools as ct  # seconds, and on a Mac only

    options: dict[str, Any] = {"function_name": function} if function else {}
    if reshapes:
        options["optimization_hints"] = {"reshapeFrequency": ct.ReshapeFrequency[reshapes]}
    return ct.models.CompiledMLModel(str(compiled), getattr(ct.ComputeUnit, COMPUTE_UNITS[unit]), **options)


def in_child(task: str, *arguments: str) -> None:
    """Compile or load in a child process. task: "compile" or "load". arguments: those of the functions above.

    Raises RuntimeError with Core ML's reason, or how the child ended, and OSError, as for a full disk.
    """
    try:
        code, words = run_child(__name__, task, *arguments, timeout=LOCK_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no answer within {LOCK_SECONDS} s") from None
    if code == _SYSTEM_ERROR:
        raise OSError(int(words), os.strerror(int(words)))
    if code != 0:
        raise RuntimeError(words if code == 1 else f"it crashed the process that tried it: {words}")


def _main(task: str, path: str, *arguments: str) -> None:
    end_with_the_parent()
    code, words = 0, ""
    try:
        if task == "compile":
            compile_package(Path(path), Path(arguments[0]))
        else:
            load_function(Path(path), *arguments)
    except OSError as error:
        code, words = _SYSTEM_ERROR, str(error.errno or errno.EIO)
    except Exception as error:  # noqa: BLE001 - coremltools raises any class
        code, words = 1, core_ml_reason(error)
    if code:
        os.write(sys.stderr.fileno(), f"\nerror: {words}\n".encode())
    # No orderly exit: it would wait for Core ML's threads.
    os._exit(code)


if __name__ == "__main__":
    _main(*sys.argv[1:])
