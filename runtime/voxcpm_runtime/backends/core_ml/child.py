"""Slow Core ML calls, in a child process: compile a package, and load it on a unit for the first time.

Either may crash, and coremltools never releases the GIL. The child runs this module, which imports little: one
starts for each package and each unit.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from voxcpm_runtime.backends.compilation import run_child, run_in_child


def compile_package(package: Path, compiled: Path) -> None:
    """Compile a package here. Raises coremltools' errors."""
    import coremltools as ct

    ct.utils.compile_model(str(package), destination_path=str(compiled))


def load_model(compiled: Path, unit: str, function: str, reshapes: str) -> Any:
    """Load coremltools' model of a function ("": the only one) here. Raises coremltools' errors.

    unit: by coremltools' name. reshapes: its hint for enumerated lengths ("": none).
    """
    import coremltools as ct

    options: dict[str, Any] = {"function_name": function} if function else {}
    if reshapes:
        options["optimization_hints"] = {"reshapeFrequency": ct.ReshapeFrequency[reshapes]}
    return ct.models.CompiledMLModel(str(compiled), ct.ComputeUnit[unit], **options)


def run(task: str, path: Path, *arguments: str) -> None:
    """Compile or load in a child process. Raises RuntimeError with Core ML's reason, or how the child ended."""
    code, words = run_child(__name__, task, str(path.absolute()), *arguments)
    if code != 0:
        raise RuntimeError(words if code == 1 else f"it crashed the child process: {words}")


if __name__ == "__main__":
    task, path, *arguments = sys.argv[1:]
    if task == "compile":
        run_in_child(lambda: compile_package(Path(path), Path(arguments[0])))
    run_in_child(lambda: load_model(Path(path), *arguments))
