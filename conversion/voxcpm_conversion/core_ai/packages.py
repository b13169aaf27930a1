"""The Core AI programs of one step model: one per precision."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import Precision, StepModel
from voxcpm_constants.targets import PackageForm, updated_name
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.core_ai.compression import compress
from voxcpm_conversion.core_ai.modules import CoreAIStep, halve, register_lowering, use_phases
from voxcpm_conversion.core_ai.toolchain import TOOLS, check_toolchain, import_module, quiet
from voxcpm_conversion.core_ml.toolchain import StageReport
from voxcpm_conversion.recipes import RECIPES
from voxcpm_conversion.step_modules import build_step, example_inputs, loaded_modules
from voxcpm_conversion.workspace import Workspace

__all__ = ["TOOLS", "add_packages", "check_toolchain"]


def add_packages(
    workspace: Workspace,
    checkpoint: Checkpoint,
    manifest: Manifest,
    package: StepModel,
    precisions: Sequence[Precision],
    *,
    report: StageReport = lambda stage, done, total: None,
) -> None:
    """Export a step model, or a part of one, in some precisions and add its programs to the workspace."""
    for precision in precisions:
        with quiet():
            report(f"{precision} weights", 0, 3)
            steps = _steps(checkpoint, manifest, package, precision)
            report(f"{precision} export", 1, 3)
            program = export_program(steps, manifest.form(package), half=precision != "fp32")
            weights = _bytes(steps.values())
            # Exported graphs and programs are reference cycles, which keep all weights alive until collected.
            del steps
            gc.collect()
            report(f"{precision} store", 2, 3)
            description = f"VoxCPM {package.name}, {precision}"
            workspace.add(
                str(manifest.package_path(precision, package.name)),
                partial(_save, program, weights, description),
            )
            del program
            gc.collect()
        report(f"{precision} store", 3, 3)


def _steps(
    checkpoint: Checkpoint, manifest: Manifest, package: StepModel, precision: Precision
) -> dict[str, nn.Module]:
    """The module of each function by name, with weights in the precision's formats."""
    a, sizes, form = checkpoint.architecture, manifest.sizes, manifest.form(package)
    modules = loaded_modules(checkpoint, package, sizes)
    use_phases(modules)
    # The form stacks the caches of all layers; step modules have one per layer.
    unstacked = (package.at(chunk) for chunk in range(package.chunk_count))
    steps = {
        name: build_step(declared, modules, a, sizes, form.state)
        for name, declared in zip(form.functions, unstacked, strict=True)
    }
    if precision in RECIPES:
        first, declared = next(iter(steps.values())), package.at(0)
        examples = example_inputs((*declared.inputs, *declared.state), 0)
        compress(first, package.name, precision, examples)
    if precision != "fp32":
        for step in steps.values():
            halve(step)
    return steps


def _bytes(steps: Iterable[nn.Module]) -> int:
    """Bytes of the parameters and buffers, counting shared memory once."""
    tensors = [t for step in steps for t in (*step.parameters(), *step.buffers())]
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())


# For the program's operations, and what other processes write meanwhile.
_DISK_MARGIN = 64_000_000


def _save(program: Any, weights: int, description: str, path: Path) -> None:
    """Write a program. Raises InputError if the disk is full, as Core AI would abort the process."""
    free, needed = shutil.disk_usage(path.parent).free, weights * 11 // 10 + _DISK_MARGIN
    if free < needed:
        raise InputError(
            f"{path.parent}: no disk space for {description}: {needed / 1e6:.1f} MB needed, {free / 1e6:.1f} MB "
            "free; free space, then run the same command again to resume"
        )
    runtime = import_module("coreai.runtime")
    metadata = runtime.AIModelAssetMetadata()
    metadata.model_description = description
    program.save_asset(path, metadata)


def export_program(steps: Mapping[str, nn.Module], form: PackageForm, *, half: bool) -> Any:
    """Convert the functions of a step model to one Core AI program, an `AIProgram`.

    steps: the module of each function of `form`, by name; they may share parameters, of which the program has one copy.
    half: their parameters are float16, and so is the arithmetic.
    """
    coreai_torch = import_module("coreai_torch")
    # Otherwise PyTorch's stack traces would be stored, with this machine's paths.
    converter = coreai_torch.TorchConverter(mode=coreai_torch.TorchConverter.Mode.RELEASE)
    register_lowering(converter)
    for name, declared in form.functions.items():
        passed = declared.state if form.state == "rows" else ()
        with torch.no_grad():
            exported = torch.export.export(
                CoreAIStep(steps[name], declared, form.state, half=half).eval(),
                _examples(declared, half=half),
            ).run_decompositions(_decompositions())
        converter.add_exported_program(
            exported,
            entrypoint_name=name,
            input_names=[t.name for t in (*declared.inputs, *passed)],
            output_names=[
                *(t.name for t in declared.outputs),
                *(updated_name(t, form.state) for t in passed),
            ],
            state_names=[t.name for t in declared.state if t not in passed],
        )
    return converter.to_coreai()


@cache
def _decompositions() -> dict[Any, Any]:
    # As a dictionary: copying PyTorch's own table iterates over all its operators.
    return dict(import_module("coreai_torch").get_decomp_table())


def _examples(declared: StepModel, *, half: bool) -> tuple[Tensor, ...]:
    """Zeros for the inputs and states of a function."""
    tensors = (*declared.inputs, *declared.state)
    return tuple(
        example.to(torch.float16 if half else torch.float32) if tensor.dtype == "compute" else example
        for tensor, example in zip(tensors, example_inputs(tensors, 0), strict=True)
    )
