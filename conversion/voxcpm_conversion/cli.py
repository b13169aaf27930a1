"""The command `voxcpm-coreml convert`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from voxcpm_constants.bounds import (
    MAX_AXIS_LENGTH,
    MAX_EULER_STEPS,
    MAX_POSITIONS,
    MIN_SOLVER_STEPS,
    STATE_MULTIPLE,
)
from voxcpm_constants.errors import InputError, one_of
from voxcpm_constants.json_files import printed_json
from voxcpm_constants.progress_lines import status_line
from voxcpm_constants.step_models import BASE_LM_STEP, MAX_TOGETHER, PRECISIONS, Precision, StepSizes
from voxcpm_constants.targets import CORE_AI, KV_CACHES, TARGETS, KVCache, Target
from voxcpm_conversion.forms import LAYOUTS, check_solver_steps, optional_module
from voxcpm_conversion.replacing import bundle_folder

if TYPE_CHECKING:
    from voxcpm_constants.manifest import Manifest
    from voxcpm_conversion.checkpoint import Checkpoint
    from voxcpm_conversion.convert import Report

DEFAULT_MAX_LENGTH = 1024
"""Default of `--max-length`, unless the checkpoint supports fewer positions."""
SOLVER_STEPS = 10
"""Euler steps of `locdit_solve` in a bundle for Core AI or for phones: the default of `generate`."""
QUANTIZE = ("measured", "all")
"""Which weights int8 and int4 quantise: all but those that do too much harm, or all."""
CORE_AI_CHUNKS = (1, 16, 32)
"""Lengths of a prefill: longer ones outgrew a phone's memory (apple/coreai-models 201)."""


class Preset(NamedTuple):
    """What the options of a bundle's form are if they are left out."""

    target: Target = "macOS14"
    kv_cache: KVCache = "scatter"
    solver_steps: int = 0
    precisions: tuple[Precision, ...] = ("fp16", "int8")


PRESETS = {"general": Preset(), "phone": Preset("macOS15", "stacked", SOLVER_STEPS, ("int8",))}
"""phone: fewer calls and tensors, as dispatches take most of a phone's time."""


def convert(
    checkpoint: Annotated[
        str, typer.Argument(help="Checkpoint folder in upstream's layout, or a hub id (org/name).")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Bundle folder to write.")],
    preset: Annotated[
        str,
        typer.Option(
            help="general; or phone: int8 for macos15, --kv-cache stacked and --solver-steps 10, unless given: "
            "fewer calls and tensors a patch."
        ),
    ] = "general",
    precision: Annotated[
        list[str] | None,
        typer.Option(help="fp16, int8, int4 or fp32; repeat for several. Default: fp16 and int8."),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Positions in the KV caches: text, prompt and speech together. Default: "
            f"{DEFAULT_MAX_LENGTH}, or the checkpoint's maximum if that is less."
        ),
    ] = None,
    prefill_chunk: Annotated[
        list[int] | None,
        typer.Option(
            help="Embeddings per call of an LM step; repeat for several. With only 1, shapes are fixed."
        ),
    ] = None,
    batch: Annotated[
        int,
        typer.Option(
            min=1,
            max=MAX_TOGETHER,
            help="Also speak this many utterances at once, each with the samples that it has alone: one reading of the "
            "weights serves all. Needs macos15.",
        ),
    ] = 1,
    target: Annotated[
        str | None,
        typer.Option(
            help="macos14; macos15: caches as Core ML states, prefill and decode as functions; or macos27: Core AI. "
            "Default: macos14, or with --batch macos15."
        ),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            help="bundle; or fluid: the six packages of FluidInference's VoxCPM 1.5, for code written for those."
        ),
    ] = "bundle",
    kv_cache: Annotated[
        str | None,
        typer.Option(
            help="scatter (default): macos14 packages return whole caches; rows: only the rows that a call adds; "
            "stacked: macos15 packages have two states, the keys and the values of all layers."
        ),
    ] = None,
    audio_vae_fp32: Annotated[
        bool,
        typer.Option(
            "--audio-vae-fp32",
            help="AudioVAE in float32 in every precision, for systems whose CPU path crashes in float16.",
        ),
    ] = False,
    solver_steps: Annotated[
        int | None,
        typer.Option(
            help=f"Add a package that runs this many Euler steps in one call, {MIN_SOLVER_STEPS} to {MAX_EULER_STEPS}, "
            f"for speech with that number; 0: none. Default: {SOLVER_STEPS} for macos27, else as --preset has it.",
            show_default=False,
        ),
    ] = None,
    alignment: Annotated[
        bool,
        typer.Option(
            "--alignment/--no-alignment",
            help="Choose an attention head of the base LM that follows the text, while it speaks six texts: for "
            "word timestamps, and so that speech does not skip or repeat words.",
        ),
    ] = True,
    quantize: Annotated[
        str | None,
        typer.Option(
            help="measured (default): weights of int8 and int4 that do too much harm on a recorded sentence stay in "
            "fp16; all: none do."
        ),
    ] = None,
    no_measure: Annotated[
        bool, typer.Option("--no-measure", help="For those in a hurry: like --quantize all.")
    ] = False,
    split_gigabytes: Annotated[
        float | None, typer.Option(help="Split the base LM into packages of at most about this size.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Commit, tag or branch of a hub id.")] = None,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Folder for downloads. Default: Hugging Face's own cache.")
    ] = None,
    local_files_only: Annotated[
        bool, typer.Option("--local-files-only", help="Use downloaded files only; no network.")
    ] = False,
    lora: Annotated[
        Path | None,
        typer.Option(
            help="LoRA to merge, as upstream or PEFT saves it: a folder, its weight file or a hub id."
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(help="Replace an existing bundle, and nothing else, when the new one is complete."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress, remarks and summary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Convert a VoxCPM checkpoint into a bundle of Core ML or Core AI step models."""
    # Lines are not wrapped, whatever the width.
    say: Callable[[str], object] = (lambda _: None) if quiet else partial(typer.echo, err=True)
    defaults = PRESETS[one_of("--preset", preset, PRESETS)]
    known = {one_of("--precision", name, PRECISIONS) for name in precision or defaults.precisions}
    precisions = [p for p in PRECISIONS if p in known]
    deployment = one_of("--target", target or ("macos15" if batch > 1 else defaults.target), TARGETS)
    maximum = DEFAULT_MAX_LENGTH if max_length is None else max_length
    sizes = _sizes(maximum, prefill_chunk, solver_steps, deployment, defaults, batch)
    caches = one_of("--kv-cache", defaults.kv_cache if kv_cache is None else kv_cache, KV_CACHES)
    measure = _measures(quantize, no_measure=no_measure)
    # With PyTorch, which takes seconds: help and misspelt options need neither those nor the extra.
    from voxcpm_conversion.alignment import with_alignment
    from voxcpm_conversion.checkpoint import Checkpoint
    from voxcpm_conversion.convert import check_checkpoint, check_forms
    from voxcpm_conversion.convert import convert as convert_checkpoint
    from voxcpm_conversion.recipes import base_lm_parts, check_split

    # Before a download, and before weights are read.
    forms = {
        "--preset": defaults is not PRESETS["general"], "--target": bool(target) and deployment != TARGETS[0],
        "--kv-cache": bool(kv_cache) and caches != KV_CACHES[0],
        "--audio-vae-fp32": audio_vae_fp32, "--solver-steps": solver_steps is not None,
        "--prefill-chunk": prefill_chunk is not None, "--split-gigabytes": split_gigabytes is not None,
        "--quantize": quantize is not None, "--batch": batch > 1,
    }  # fmt: skip
    room = _room(layout, precisions, [option for option, given in forms.items() if given])
    check_forms(precisions, sizes, deployment, caches, audio_vae_fp32=audio_vae_fp32)
    # Exempt imported modules from garbage collection, which runs for every package: saves seconds.
    gc.freeze()
    if split_gigabytes is not None:
        check_split(split_gigabytes)
    bundle_folder(output, [checkpoint, *([lora] if lora else [])], overwrite=overwrite)
    opened = Checkpoint.open(
        checkpoint, revision=revision, lora=lora, cache_dir=cache_dir, local_files_only=local_files_only
    )
    if room is not None:
        for remark in opened.lora.remarks() if opened.lora else ():
            say(remark)
        with _progress(quiet=quiet) as report:
            room.write(
                opened,
                output,
                precisions=precisions,
                positions=max_length,
                overwrite=overwrite,
                report=report,
            )
        say(f"{output}: six packages in {', '.join(precisions)}")
        if as_json:
            _print_json(output, layout, precisions)
        return
    # Defaults depend on the checkpoint.
    longest = opened.architecture.max_length if max_length is None else sizes.kv_length
    solver_steps = 0 if solver_steps is None and opened.architecture.mean_mode else solver_steps
    sizes = _sizes(min(longest, sizes.kv_length), prefill_chunk, solver_steps, deployment, defaults, batch)
    check_forms(precisions, sizes, deployment, caches)
    for remark in _remarks(opened, sizes, deployment):
        say(remark)
    if split_gigabytes is not None:
        count = base_lm_parts(opened.architecture, precisions, split_gigabytes)
        sizes = sizes.model_copy(update={"base_lm_parts": count})
    check_checkpoint(opened, sizes)
    remarks: list[str] = []
    with _progress(quiet=quiet) as report:
        if alignment:
            sizes = with_alignment(sizes, opened, partial(report, BASE_LM_STEP), remarks.append)
        manifest = convert_checkpoint(
            opened,
            output,
            precisions=precisions,
            sizes=sizes,
            target=deployment,
            kv_cache=caches,
            audio_vae_fp32=audio_vae_fp32,
            measure=measure,
            overwrite=overwrite,
            report=report,
            say=remarks.append,
        )
    for remark in (*remarks, *_result(manifest, output)):
        say(remark)
    if as_json:
        _print_json(
            output, layout, manifest.precisions, target=manifest.target, positions=manifest.sizes.kv_length
        )


def _result(manifest: Manifest, output: Path) -> Iterator[str]:
    from voxcpm_conversion.core_ml.packages import why_not_compiled  # With PyTorch

    if manifest.target != CORE_AI and (reason := why_not_compiled(manifest.target)):
        yield f"No .mlmodelc: {reason}."
    if merged := manifest.source.lora:
        yield (
            f"merged {merged.name} (r {merged.r}, alpha {merged.alpha}) into {merged.weights} weights: "
            f"{', '.join(merged.modules)}"
        )
    if not manifest.source.licence:
        yield "Neither speech.json nor README.md states the checkpoint's licence: the model card has none."
    size = sum(record.bytes for record in manifest.files.values())
    yield (
        f"{output}: {len(manifest.step_models)} step models in {', '.join(manifest.precisions)} for {manifest.target}, "
        f"{size / 1e6:.0f} MB, {manifest.sizes.kv_length} positions"
    )


def _print_json(output: Path, layout: str, precisions: Sequence[Precision], **facts: Any) -> None:
    result = {"output": str(output), "layout": layout, "precisions": precisions, **facts}
    typer.echo(printed_json(result))


def _measures(quantize: str | None, *, no_measure: bool) -> bool:
    """Whether quantised weights are measured. Raises InputError for an unknown way and for a contradiction."""
    measured = one_of("--quantize", quantize or QUANTIZE[0], QUANTIZE) == QUANTIZE[0]
    if no_measure and quantize == QUANTIZE[0]:
        raise InputError(f"--no-measure: --quantize {quantize} measures; leave one of them out")
    return measured and not no_measure


def _room(layout: str, precisions: list[Precision], forms: list[str]) -> ModuleType | None:
    """The module that writes another layout; None for our own. forms: given options that only our own layout has."""
    if not (module := LAYOUTS[one_of("--layout", layout, LAYOUTS)]):
        return None
    room = optional_module(module, f"--layout {layout}")
    room.check(precisions)
    if forms:
        raise InputError(f"--layout {layout} has one form only; leave out {', '.join(forms)}")
    return room


def _remarks(opened: Checkpoint, sizes: StepSizes, target: Target) -> Iterator[str]:
    """What the user should know before the conversion, a line each."""
    if ignored := opened.architecture.unknown_keys():
        yield f"config.json: ignored unknown keys {', '.join(ignored)}"
    yield from opened.lora.remarks() if opened.lora else ()
    if sizes.kv_length > MAX_AXIS_LENGTH:
        yield (
            f"--max-length {sizes.kv_length}: the Neural Engine does not support caches of more than "
            f"{MAX_AXIS_LENGTH} positions, so the LM steps will run elsewhere"
        )
    if target == "macOS15" and sizes.kv_length % STATE_MULTIPLE:
        yield (
            f"--max-length {sizes.kv_length}: the Neural Engine needs a multiple of {STATE_MULTIPLE} for Core ML's "
            "states, so the LM steps will run elsewhere"
        )


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Report]:
    with status_line("", shown=not quiet) as note:
        yield lambda model, stage, done, total: note(
            f"{model}: {stage}{f' {done} of {total}' if total else ''}"
        )


def _sizes(
    max_length: int,
    prefill_chunks: list[int] | None,
    solver_steps: int | None,
    target: Target,
    preset: Preset,
    together: int,
) -> StepSizes:
    if not 1 <= max_length <= MAX_POSITIONS:
        raise InputError(f"--max-length {max_length}: expected 1 to {MAX_POSITIONS} positions")
    if prefill_chunks is None:
        defaults = CORE_AI_CHUNKS if target == CORE_AI else StepSizes().prefill_chunks
        chunks = tuple(c for c in defaults if c <= max_length)
    else:
        # Speech is decoded one embedding at a time, so 1 is always included.
        chunks = tuple(sorted({1, *prefill_chunks}))
    if chunks[0] < 1:
        raise InputError(f"--prefill-chunk {chunks[0]}: expected at least 1")
    if solver_steps is None:
        # Core AI's Python aborts after some 16,000 outputs, and each Euler step in a separate call is one.
        solver_steps = SOLVER_STEPS if target == CORE_AI else preset.solver_steps
    check_solver_steps(solver_steps)
    return StepSizes(
        kv_length=max_length, prefill_chunks=chunks, solver_steps=solver_steps, together=together
    )
