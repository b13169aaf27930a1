"""Compilation of every package to `.mlmodelc` with Apple's compiler, so that an app need not compile it at start."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from voxcpm_constants.errors import core_ml_reason
from voxcpm_constants.macos import macos
from voxcpm_constants.manifest import package_path
from voxcpm_constants.step_models import Precision
from voxcpm_constants.targets import OLDEST_MACOS, Target
from voxcpm_conversion.core_ml.toolchain import import_coremltools
from voxcpm_conversion.workspace import Workspace


def why_not_compiled(target: Target) -> str | None:
    """Why this system cannot compile packages of a target, in a line; None if it can."""
    system = macos()
    if system is None:
        return "Apple's Core ML compiler runs on macOS only; a package is compiled where it is first loaded"
    if system.version[0] < OLDEST_MACOS[target]:
        return (
            f"{target} packages are compiled on macOS {OLDEST_MACOS[target]} or newer, and this is {system}"
        )
    return None


def compile_packages(
    workspace: Workspace, step_models: Sequence[str], precisions: Sequence[Precision], target: Target
) -> None:
    """Compile each package of the workspace that is not compiled yet; where that is impossible, do nothing.

    Warns of each package that Core ML refuses: an app needs no compiled form, and another system may take the package.
    """
    if why_not_compiled(target) is not None:
        return
    for precision in precisions:
        for name in step_models:
            package = package_path(precision, name)
            compiled = str(package.with_suffix(".mlmodelc"))
            if workspace.has(compiled):
                continue
            try:
                workspace.add(compiled, partial(_compile, workspace.folder / package))
            except RuntimeError as error:
                warnings.warn(
                    f"{package}: no .mlmodelc, since Core ML on {macos()} refuses it ({core_ml_reason(error)}); "
                    "to run it here, convert with another --target or --precision",
                    stacklevel=2,
                )


def _compile(package: Path, compiled: Path) -> None:
    import_coremltools().models.utils.compile_model(str(package), destination_path=str(compiled))
