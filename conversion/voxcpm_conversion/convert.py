"""Converts a checkpoint into a bundle, one step model at a time, so that only its weights are in memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

from voxcpm_constants.arrays import EMBED_TOKENS, constant_shapes, write_constant
from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import (
    CONFIG_PATH,
    CONSTANTS_FOLDER,
    TOKENIZER_FOLDER,
    Manifest,
)
from voxcpm_constants.step_models import PRECISIONS, Precision, StepModel, StepSizes, declare_step_models
from voxcpm_constants.targets import CORE_AI, KVCache, Target
from voxcpm_constants.tokenizer_file import TOKENIZER_CONFIG_FILE
from voxcpm_constants.vectors import VECTORS_FORMAT, vectors_path
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.checkpoint_files import CONFIG_FILE
from voxcpm_conversion.core_ml.packages import compile_packages
from voxcpm_conversion.forms import check_solver_steps, optional_module
from voxcpm_conversion.gate import Gate, measurements
from voxcpm_conversion.model_card import write_model_card
from voxcpm_conversion.modules.voxcpm import EMBED_TOKENS as EMBED_TOKENS_WEIGHT
from voxcpm_conversion.modules.voxcpm import check_weights
from voxcpm_conversion.recipes import check_target
from voxcpm_conversion.recording import MIN_POSITIONS, Recording
from voxcpm_conversion.replacing import bundle_folder
from voxcpm_conversion.step_modules import loaded_modules
from voxcpm_conversion.vectors import add_vectors
from voxcpm_conversion.workspace import Workspace

Report = Callable[[str, str, int, int], None]
"""report(step model, stage, done, total): progress of a stage of a step model."""


def convert(
    checkpoint: Checkpoint,
    bundle: Path,
    *,
    precisions: Sequence[Precision],
    sizes: StepSizes,
    target: Target = "macOS14",
    kv_cache: KVCache = "scatter",
    audio_vae_fp32: bool = False,
    measure: bool = False,
    overwrite: bool = False,
    report: Report = lambda model, stage, done, total: None,
    say: Callable[[str], object] = lambda line: None,
) -> Manifest:
    """Write `bundle`, resuming an interrupted run with the same arguments; an error leaves no bundle.

    kv_cache: what a macOS 14 package returns of its caches. audio_vae_fp32: the AudioVAE computes in float32 in every
    precision (`declare_step_models`). measure: run the quantised packages on a recorded sentence, and keep weights in
    fp16 that do too much harm (`gate`). overwrite: replace an existing bundle, and nothing else
    (`replacing`). say: called with what was measured, a line each.
    Raises InputError for sizes that the checkpoint does not support, a precision that the target does not support, and
    an output that must not be replaced; CheckpointError for weights that are missing, unexpected or of another shape.
    """
    a = checkpoint.architecture
    folder = bundle_folder(bundle, checkpoint.inputs(), overwrite=overwrite)
    check_forms(precisions, sizes, target, kv_cache, audio_vae_fp32=audio_vae_fp32)
    check_checkpoint(checkpoint, sizes)
    converter = _converter(target)
    manifest = Manifest(
        architecture=a,
        sizes=sizes,
        step_models=declare_step_models(
            a, sizes, audio_vae_fp32=audio_vae_fp32, stacked=kv_cache == "stacked"
        ),
        precisions=tuple(p for p in PRECISIONS if p in precisions),
        target=target,
        kv_cache=kv_cache,
        source=checkpoint.source(),
        speech=checkpoint.speech,
        tools={name: version(name) for name in converter.TOOLS},
        files={},
    )
    plan = {
        **manifest.model_dump(mode="json", exclude={"files"}),
        "vectors": VECTORS_FORMAT,
        "measure": measure,
    }
    with Workspace(folder, plan) as workspace:
        # The workspace has restored a bundle that an interrupted run had renamed.
        bundle_folder(folder, checkpoint.inputs(), overwrite=overwrite)
        _add_constants(workspace, checkpoint)
        gate, measured = None, measure and {*precisions} != {"fp32"}
        if measured and (target == CORE_AI or sizes.kv_length < MIN_POSITIONS):
            needs = f"--target macos14 or macos15, and a --max-length of {MIN_POSITIONS} or more"
            say(f"No weights or values are measured, as that needs {needs}.")
        elif measured:
            gate = Gate(Recording(checkpoint, manifest, workspace.folder), manifest)
        for declaration in manifest.step_models.values():
            _add_step_model(converter, workspace, checkpoint, manifest, declaration, report, gate)
        rows = [each.row() for each in measurements(workspace.folder, manifest)]
        lines = (f"{precision}/{package}: {', '.join(row)}" for precision, package, *row in rows)
        for line in (*lines, *(gate.overflow_lines() if gate else ())):
            say(line)
        if target != CORE_AI:
            compile_packages(workspace, manifest)
        manifest = manifest.model_copy(update={"files": workspace.files()})
        manifest.write(workspace.folder)
        write_model_card(workspace.folder, manifest, rows)
        # Again: the output may have changed meanwhile.
        bundle_folder(folder, checkpoint.inputs(), overwrite=overwrite)
        workspace.publish()
    return manifest


def check_checkpoint(checkpoint: Checkpoint, sizes: StepSizes) -> None:
    """Raises InputError and CheckpointError as `convert` does, before any work."""
    a = checkpoint.architecture
    if sizes.kv_length > a.max_length:
        raise InputError(
            f"--max-length {sizes.kv_length}: this checkpoint supports at most {a.max_length} positions"
        )
    if sizes.solver_steps and a.mean_mode:
        raise InputError(
            "--solver-steps: unsupported, as this checkpoint's DiT takes each step's length as input (mean mode)"
        )
    check_weights(checkpoint.shapes(), a)


def _converter(target: Target) -> ModuleType:
    """The module that writes a target's packages: `core_ml.packages`, or that of the optional room `core_ai`."""
    return optional_module(
        f"{'core_ai' if target == CORE_AI else 'core_ml'}.packages", f"--target {target.lower()}"
    )


def _add_step_model(
    converter: ModuleType,
    workspace: Workspace,
    checkpoint: Checkpoint,
    manifest: Manifest,
    declaration: StepModel,
    report: Report,
    gate: Gate | None,
) -> None:
    """Add a step model's test vectors and packages that the workspace lacks."""
    if not workspace.has(str(vectors_path(declaration.name))):
        modules = loaded_modules(checkpoint, declaration, manifest.sizes)
        add_vectors(workspace, checkpoint.architecture, declaration, manifest.sizes, modules)
        if gate:  # The weights would take seconds to read again.
            gate.record(declaration.name, modules)
        del modules
    for package in manifest.parts(declaration.name):
        missing = [
            p for p in manifest.precisions if not workspace.has(str(manifest.package_path(p, package.name)))
        ]
        if missing:
            options = {"gate": gate} if gate else {}  # Core AI's converter has none
            converter.add_packages(
                workspace,
                checkpoint,
                manifest,
                package,
                missing,
                report=partial(report, package.name),
                **options,
            )


def check_forms(
    precisions: Sequence[Precision],
    sizes: StepSizes,
    target: Target,
    kv_cache: KVCache = "scatter",
    *,
    audio_vae_fp32: bool = False,
) -> None:
    """Validate options that do not depend on the checkpoint, before it is downloaded.

    Raises InputError for incompatible precisions, sizes, target and cache form.
    """
    check_target(precisions, target)
    if audio_vae_fp32 and target == CORE_AI:
        raise InputError("--audio-vae-fp32 needs --target macos14 or macos15: it is for Core ML's CPU path")
    if target == CORE_AI:
        _converter(target).check_toolchain()
    if kv_cache == "rows" and target == "macOS15":
        raise InputError("--kv-cache rows needs --target macos14 or macos27: for macos15 caches are states")
    if kv_cache == "stacked" and target != "macOS15":
        raise InputError("--kv-cache stacked needs --target macos15: it stacks that form's states")
    if sizes.together > 1 and (target != "macOS15" or kv_cache != "scatter"):
        raise InputError(
            f"--batch {sizes.together} needs --target macos15 and --kv-cache scatter, got {target.lower()} and "
            f"{kv_cache}: there functions of a package share its weights"
        )
    check_solver_steps(sizes.solver_steps)
    if target == "macOS15" and "fp32" in precisions:
        raise InputError(
            "--precision fp32 needs --target macos14 or macos27: macos15 has its KV caches in Core ML states, "
            "which are float16"
        )
    if max(sizes.prefill_chunks) > sizes.kv_length:
        raise InputError(
            f"--prefill-chunk {max(sizes.prefill_chunks)} does not fit into a KV cache of {sizes.kv_length} positions"
        )


def _add_constants(workspace: Workspace, checkpoint: Checkpoint) -> None:
    def write_constants(folder: Path) -> None:
        folder.mkdir()
        shutil.copyfile(checkpoint.folder / CONFIG_FILE, folder / Path(CONFIG_PATH).name)
        for stem in constant_shapes(checkpoint.architecture):
            write_constant(folder, stem, constant(checkpoint, stem))

    def write_tokenizer(folder: Path) -> None:
        folder.mkdir()
        for name, path in checkpoint.tokenizer_files().items():
            shutil.copyfile(path, folder / name)
        # Without this file upstream uses its defaults; an empty one has the same effect.
        if not (folder / TOKENIZER_CONFIG_FILE).exists():
            (folder / TOKENIZER_CONFIG_FILE).write_text("{}\n", encoding="utf-8")

    for part, write in ((CONSTANTS_FOLDER, write_constants), (TOKENIZER_FOLDER, write_tokenizer)):
        if not workspace.has(part):
            workspace.add(part, write)


def constant(checkpoint: Checkpoint, stem: str) -> npt.NDArray[np.float32]:
    """The array of a checkpoint that is stored under this name, such as lm_to_dit_proj_w."""
    if stem == EMBED_TOKENS:
        return checkpoint.tensor(EMBED_TOKENS_WEIGHT).numpy()
    layer, _, kind = stem.rpartition("_")
    return checkpoint.tensor(f"{layer}.{'weight' if kind == 'w' else 'bias'}").numpy()
