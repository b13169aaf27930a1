"""The Core AI programs of one step model: one for each precision."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import package_path
from voxcpm_constants.step_models import Precision, StepModel, StepSizes
from voxcpm_constants.targets import PackageForm, Target
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.core_ai.arithmetic import halve
from voxcpm_conversion.core_ai.compression import compress
from voxcpm_conversion.core_ai.convolutions import use_phases
from voxcpm_conversion.core_ai.export import export_program
from voxcpm_conversion.core_ai.toolchain import TOOLS, check_toolchain, import_module, quiet
from voxcpm_conversion.modules.voxcpm import VoxCPMModules
from voxcpm_conversion.recipes import RECIPES
from voxcpm_conversion.step_modules import build_step, example_inputs, loaded_modules
from voxcpm_conversion.workspace import Workspace

__all__ = ["TOOLS", "add_packages", "check_toolchain"]


def add_packages(
    workspace: Workspace,
    checkpoint: Checkpoint,
    declaration: StepModel,
    form: PackageForm,
    sizes: StepSizes,
    precisions: Sequence[Precision],
    target: Target,
    *,
    report: Callable[[str, int, int], None] = lambda stage, done, total: None,
    loaded: Callable[[VoxCPMModules], object] | None = None,
) -> None:
    """Export a step model, or a part of one, in the given precisions and add its programs to the workspace.

    loaded(modules) is called with the torch modules whenever the step model's weights are in them, in float32.
    """
    for precision in precisions:

        def progress(stage: str, done: int, precision: Precision = precision) -> None:
            report(f"{precision} {stage}", done, 3)

        progress("weights", 0)
        with quiet():
            modules = loaded_modules(checkpoint, declaration, sizes)
            if loaded is not None:
                loaded(modules)
            program, weights = _program(checkpoint, declaration, form, sizes, precision, modules, progress)
            # Exported graphs and programs refer to themselves in circles, and hold all weights until those are found.
            del modules
            gc.collect()
            progress("store", 2)
            name = package_path(precision, declaration.name, target)
            description = f"VoxCPM {declaration.name}, {precision}"
            workspace.add(str(name), partial(_save, program, weights, description))
            del program
            gc.collect()
        progress("store", 3)


def _program(
    checkpoint: Checkpoint,
    declaration: StepModel,
    form: PackageForm,
    sizes: StepSizes,
    precision: Precision,
    modules: VoxCPMModules,
    progress: Callable[[str, int], None],
) -> tuple[Any, int]:
    """The program, and the bytes of its weights."""
    a, half = checkpoint.architecture, precision != "fp32"
    use_phases(modules)
    # The form stacks the caches of all layers; a step module has those of each.
    unstacked = (declaration.at(chunk) for chunk in range(declaration.chunk_count))
    steps = {
        name: build_step(declared, modules, a, sizes, form.state)
        for name, declared in zip(form.functions, unstacked, strict=True)
    }
    if precision in RECIPES:
        first, declared = next(iter(steps.values())), declaration.at(0)
        examples = example_inputs((*declared.inputs, *declared.state), 0)
        compress(first, declaration.name, precision, examples)
    if half:
        for step in steps.values():
            halve(step)
    progress("export", 1)
    return export_program(steps, form, half=half), _bytes(steps.values())


def _bytes(steps: Iterable[nn.Module]) -> int:
    """Bytes of the parameters and buffers, each memory once."""
    tensors = [t for step in steps for t in (*step.parameters(), *step.buffers())]
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())


# A program has its operations, too, and other processes write meanwhile.
_ROOM_BESIDE = 64_000_000


def _save(program: Any, weights: int, description: str, path: Path) -> None:
    """Write a program. Raises InputError where there is no room: Core AI would end the process."""
    free, needed = shutil.disk_usage(path.parent).free, weights * 11 // 10 + _ROOM_BESIDE
    if free < needed:
        raise InputError(
            f"{path.parent}: no room for {description}: it needs {needed / 1e6:.1f} MB, and {free / 1e6:.1f} MB are "
            "free; free space and run the same command again, which resumes"
        )
    runtime = import_module("coreai.runtime")
    metadata = runtime.AIModelAssetMetadata()
    metadata.model_description = description
    program.save_asset(path, metadata)
