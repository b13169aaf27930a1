"""The packages of one step model: one per precision, in the form that the deployment target requires."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from voxcpm_constants.core_ml_errors import core_ml_reason
from voxcpm_constants.errors import warn
from voxcpm_constants.macos import macos
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import Precision, StepModel
from voxcpm_constants.targets import MAIN, MIN_MACOS, StateForm, Target
from voxcpm_constants.tensor_files import WEIGHT_FILE, is_complete
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.core_ml.compression import compress
from voxcpm_conversion.core_ml.export import export_step
from voxcpm_conversion.core_ml.toolchain import TOOLS, StageReport, exporting, import_coremltools
from voxcpm_conversion.gate import Gate, measured_path
from voxcpm_conversion.recipes import RECIPES
from voxcpm_conversion.step_modules import build_step, loaded_modules
from voxcpm_conversion.workspace import Workspace

__all__ = ["TOOLS", "add_packages"]

_IN_A_PACKAGE = {"Manifest.json", "Data"}
_TRIAL = "trial"
Kept = Mapping[Precision, Collection[str]]
"""The weights that stay in fp16, by precision."""


def add_packages(
    workspace: Workspace,
    checkpoint: Checkpoint,
    manifest: Manifest,
    package: StepModel,
    precisions: Sequence[Precision],
    *,
    gate: Gate | None = None,
    report: StageReport = lambda stage, done, total: None,
) -> None:
    """Export a step model, or a part of one, in some precisions and add its packages to the workspace.

    gate: measures the quantised ones, and decides which of their weights stay in fp16.
    """
    form, quantised = manifest.form(package), {p for p in precisions if package.precision_in(p) in RECIPES}
    kept = {p: gate.kept(package, p) for p in quantised} if gate else {}

    def export(
        scratch: Path, precisions: Sequence[Precision], kept: Kept
    ) -> dict[Precision, dict[str, Path]]:
        """The packages of all functions by precision and name."""
        for function, declared in form.functions.items():
            state = form.state_in(function)
            for precision, model in _models(checkpoint, manifest, declared, state, precisions, kept):
                _describe(model, declared, precision, state)
                model.save(str(scratch / precision / f"{function}.mlpackage"))
            # Measuring needs its memory.
            del model
        return {p: {name: scratch / p / f"{name}.mlpackage" for name in form.functions} for p in precisions}

    with exporting(report), workspace.temporary_files() as scratch:
        for precision, functions in export(scratch, precisions, kept).items():
            path = str(manifest.package_path(precision, package.name))
            if gate is None or precision not in quantised:
                workspace.add(path, partial(_join, functions))
                continue
            report("measuring", 0, 1)
            trial = scratch / _TRIAL / path
            trial.parent.mkdir(parents=True)
            _join(functions, trial)

            def rebuild(kept: Collection[str], precision: Precision = precision, trial: Path = trial) -> None:
                shutil.rmtree(trial)
                _join(export(scratch, [precision], {precision: kept})[precision], trial)

            measured = gate.judge(scratch / _TRIAL, package, precision, rebuild).model_dump_json(indent=1)
            workspace.add(
                measured_path(precision, package.name),
                partial(Path.write_text, data=measured, encoding="utf-8"),
            )
            workspace.add(path, trial.replace)


def _models(
    checkpoint: Checkpoint,
    manifest: Manifest,
    declared: StepModel,
    state: StateForm,
    precisions: Sequence[Precision],
    kept: Kept,
) -> Iterator[tuple[Precision, Any]]:
    """One function of a package as an MLModel in each precision; int8 and int4 are made from fp16."""
    modules = loaded_modules(checkpoint, declared, manifest.sizes)
    step = build_step(declared, modules, checkpoint.architecture, manifest.sizes, state)
    in_float32 = [precision for precision in precisions if declared.precision_in(precision) == "fp32"]
    if in_float32:
        whole = export_step(step, declared, "fp32", manifest.target, state)
        yield from ((precision, whole) for precision in in_float32)
        del whole
    of_half = [precision for precision in precisions if precision not in in_float32]
    if not of_half:
        return
    half = export_step(step, declared, "fp16", manifest.target, state)
    # The module's float32 weights are twice as large as the program's: VoxCPM2's base LM would need 17 GB for both.
    del step, modules
    for precision in of_half:
        fp16 = precision == "fp16"
        yield precision, half if fp16 else compress(half, declared.name, precision, kept.get(precision, ()))


def _describe(model: Any, declared: StepModel, precision: Precision, state: StateForm) -> None:
    """Set the descriptions that Xcode shows."""
    model.short_description = f"VoxCPM {declared.name}, {declared.precision_in(precision)}"
    for tensor in (*declared.inputs, *(() if state == "native" else declared.state)):
        model.input_description[tensor.name] = tensor.meaning


def _join(functions: Mapping[str, Path], package: Path) -> None:
    """Join the packages of several functions into one that shares their weights; the first function is the default."""
    default, *others = functions
    for part in functions.values():
        require_whole(part)
    if not others:
        functions[default].replace(package)
        return
    ct = import_coremltools()
    descriptor = ct.utils.MultiFunctionDescriptor()
    try:
        for name, part in functions.items():
            descriptor.add_function(str(part), src_function_name=MAIN, target_function_name=name)
        descriptor.default_function_name = default
        ct.utils.save_multifunction(descriptor, str(package))
    except ValueError as error:
        # Its messages for a package that it has just written and cannot open.
        if str(error).startswith(("invalid model_path", "weight_dir for model_path")):
            raise OSError(errno.EIO, os.strerror(errno.EIO)) from None
        raise
    require_whole(package)


def require_whole(package: Path) -> None:
    """Raises OSError for an incomplete package, which coremltools does not report.

    The list of files is written to a temp file and renamed; an incomplete one stays behind. A weight file's header is
    written last.
    """
    weights = package / WEIGHT_FILE
    listed = {each.name for each in package.iterdir()} == _IN_A_PACKAGE
    if not listed or (weights.exists() and not is_complete(weights)):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def why_not_compiled(target: Target) -> str | None:
    """Why this system cannot compile packages of a target, in one line; None if it can."""
    system = macos()
    if system is None:
        return "Apple's Core ML compiler runs on macOS only; a package is compiled where it is first loaded"
    if system.version[0] < MIN_MACOS[target]:
        return f"compiling {target} packages needs macOS {MIN_MACOS[target]} or newer, but this is {system}"
    return None


def compile_packages(workspace: Workspace, manifest: Manifest) -> None:
    """Compile each package of the workspace that is not compiled yet; a no-op where that is impossible.

    Warns about packages that Core ML rejects: apps do not need the compiled form, and another system may accept them.
    """
    if why_not_compiled(manifest.target) is not None:
        return
    for name in manifest.package_folders(manifest.precisions):
        compiled = str(PurePosixPath(name).with_suffix(".mlmodelc"))
        if workspace.has(compiled):
            continue
        try:
            workspace.add(compiled, partial(_compile, workspace.folder / name))
        except RuntimeError as error:
            warn(
                f"{name}: no .mlmodelc, since Core ML on {macos()} rejects it ({core_ml_reason(error)}); "
                "to run it here, convert with another --target or --precision"
            )


def _compile(package: Path, compiled: Path) -> None:
    import_coremltools().models.utils.compile_model(str(package), destination_path=str(compiled))
