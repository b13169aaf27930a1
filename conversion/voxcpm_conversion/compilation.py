"""Compilation of every package to `.mlmodelc` with Apple's compiler, so that an app need not compile it at start."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from voxcpm_constants.manifest import package_path
from voxcpm_constants.step_models import Precision
from voxcpm_conversion.toolchain import import_coremltools
from voxcpm_conversion.workspace import Workspace


def can_compile() -> bool:
    """Whether Core ML's compiler is available, which is the case on macOS only."""
    return platform.system() == "Darwin"


def compile_packages(
    workspace: Workspace, step_models: Sequence[str], precisions: Sequence[Precision]
) -> None:
    """Compile each package of the workspace that is not compiled yet; without a compiler, do nothing."""
    if not can_compile():
        return
    for precision in precisions:
        for name in step_models:
            package = package_path(precision, name)
            compiled = str(package.with_suffix(".mlmodelc"))
            if not workspace.has(compiled):
                workspace.add(compiled, partial(_compile, workspace.folder / package))


def _compile(package: Path, compiled: Path) -> None:
    import_coremltools().models.utils.compile_model(str(package), destination_path=str(compiled))
