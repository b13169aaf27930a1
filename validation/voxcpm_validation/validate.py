"""Validation of a bundle against its checkpoint: first the step models, then the whole loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

from voxcpm_constants.errors import InputError
from voxcpm_constants.macos import macos
from voxcpm_constants.manifest import Manifest, Source
from voxcpm_constants.step_models import Precision
from voxcpm_constants.targets import CORE_AI, Target
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_runtime.backends.loading import Backend, choose_backend
from voxcpm_runtime.bundle.opening import DEFAULT_BUNDLE, open_bundle
from voxcpm_runtime.text.normalization import spelled, spelled_transcript
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.default_text import DEFAULT_TEXT
from voxcpm_validation.end_to_end import Case, EndToEnd, SpokenCase, cases, compare_speech, speak_upstream
from voxcpm_validation.reference import RecordedCall, record_reference
from voxcpm_validation.report import ValidationReport, below_floors
from voxcpm_validation.sensitivity import PERTURBATIONS, Sensitivity, measure_sensitivity
from voxcpm_validation.step_agreement import Arithmetic, StepAgreement, measure_step
from voxcpm_validation.upstream import load_upstream

FEW_PATCHES = 4
"""Patches per utterance where half precision is emulated: the base LM then takes a tenth of a second per position."""


def validate_bundle(
    bundle: Path,
    checkpoint: str,
    *,
    lora: Path | None = None,
    precisions: Sequence[Precision] | None = None,
    text: str = DEFAULT_TEXT,
    prompt_wav: Path | None = None,
    prompt_text: str | None = None,
    patches: int = 12,
    seed: int = 0,
    backend: Backend = "auto",
    report: Callable[[str], None] = lambda line: None,
) -> ValidationReport:
    """Compare every step model and the whole loop with upstream. report: called with the name of each part.

    The step models run on the portable executor, or on Core AI's runtime if the bundle is for macOS 27.

    lora: the LoRA that was merged into the bundle; upstream applies it on top of the checkpoint's weights.
    patches: patches per utterance; Core AI off the Mac speaks at most FEW_PATCHES in half precision.

    Raises InputError for a checkpoint or LoRA that the bundle was not converted from, or a precision that it lacks.
    """
    opened = open_bundle(bundle)
    manifest, folder = opened.manifest, opened.folder
    on_core_ai = manifest.target == CORE_AI
    choose_backend(backend, opened)
    source = Checkpoint.open(checkpoint, lora=lora)
    _check_source(bundle, manifest.source, source.source(), checkpoint, lora)
    chosen = tuple(p for p in manifest.precisions if precisions is None or p in precisions)
    if not chosen:
        raise InputError(
            f"{bundle}: expected precision {', '.join(manifest.precisions)}, got {', '.join(precisions or ())}"
        )
    # Both sides get the runtime's spelling; for published vocabularies that is the text itself.
    text = spelled(text, opened.tokenizer)
    transcript = spelled_transcript(prompt_text or text, opened.tokenizer)
    report("upstream")
    kv_length = manifest.sizes.kv_length
    load = partial(load_upstream, source.folder, max_length=kv_length, lora=source.lora)
    model = load()
    # For the continuation: without a recording, its prompt is the zero-shot speech.
    positions = len(model.text_tokenizer(transcript + text)) + 1 + (patches if prompt_wav else 2 * patches)
    if positions > kv_length:
        raise InputError(
            f"a continuation of --text by {patches} patches needs {positions} positions, but {bundle} has {kv_length}; "
            "use a shorter --text or fewer --patches"
        )
    lengths = {p: min(patches, FEW_PATCHES) if _is_slow(manifest.target, p) else patches for p in chosen}
    # Cached: the zero-shot speech is also the prompt of other cases.
    speak = cache(partial(speak_upstream, model))
    references: dict[int, Mapping[str, Sequence[RecordedCall]]] = {}
    expected: dict[int, list[tuple[Case, SpokenCase]]] = {}
    with ExitStack() as prompts:
        for length in set(lengths.values()):
            references[length] = record_reference(
                model, manifest.architecture, manifest.sizes, text=text, patches=length, seed=seed
            )
            utterances = prompts.enter_context(
                cases(
                    model, text, patches=length, seed=seed, prompt_wav=prompt_wav, prompt_text=transcript, speak=speak
                )
            )  # fmt: skip
            expected[length] = [(case, speak(case)) for case in utterances]
        # Free upstream's memory for the bundle's models: VoxCPM2 would need more than 22 GB for both.
        del model, speak
        steps: list[StepAgreement] = []
        spoken: list[EndToEnd] = []
        for precision, length in lengths.items():
            steps += _measure_steps(folder, manifest, precision, references[length], report)
            tts = VoxCPM.from_bundle(folder, precision=precision, backend=backend)
            for case, upstream in expected[length]:
                report(f"{case.name} {precision}")
                spoken.append(compare_speech(tts, case, upstream))
            del tts
        drifting = {
            (s.case, s.precision)
            for s in spoken
            if s.precision in PERTURBATIONS and below_floors(s, core_ai=on_core_ai)
        }
        sensitivity: list[Sensitivity] = []
        if drifting:
            # Only if needed, as it takes long.
            report("upstream, perturbed")
            model = load()
            sensitivity = [
                measure_sensitivity(model, precision, case, upstream)
                for precision, length in lengths.items()
                for case, upstream in expected[length]
                if (case.name, precision) in drifting
            ]
    engine = ("coreai-core",) if on_core_ai else ("coremltools", "onnxruntime")
    recorded, notes = manifest.source, []
    if fewer := ", ".join(precision for precision, length in lengths.items() if length < patches):
        notes.append(
            f"{fewer}: utterances and step models' calls of {FEW_PATCHES} patches instead of {patches}, "
            "as Core AI off the Mac emulates half precision slowly; every length is called"
        )
    return ValidationReport(
        bundle=str(bundle),
        checkpoint=recorded.checkpoint + (f" with LoRA {recorded.lora.name}" if recorded.lora else ""),
        built_in=recorded.sha256 == Manifest.read(DEFAULT_BUNDLE).source.sha256,
        tools={name: version(name) for name in ("voxcpm", "torch", *engine, "numpy")},
        sensitivity=tuple(sensitivity),
        steps=tuple(steps),
        end_to_end=tuple(spoken),
        notes=tuple(notes),
    )


def _is_slow(target: Target, precision: Precision) -> bool:
    """Whether half precision is emulated, as by Core AI's runtime off the Mac."""
    return target == CORE_AI and precision != "fp32" and macos() is None


def _check_source(bundle: Path, recorded: Source, given: Source, checkpoint: str, lora: Path | None) -> None:
    merged, passed = recorded.lora, given.lora
    if given.sha256 != recorded.sha256:
        raise InputError(
            f"{checkpoint}: not the checkpoint that {bundle} was converted from ({recorded.checkpoint})"
        )
    if passed is not None and merged is None:
        raise InputError(f"--lora {lora}: {bundle} was converted without a LoRA; omit it, or convert with it")
    if passed is None and merged is not None:
        raise InputError(f"{bundle} was converted with the LoRA {merged.name}; pass it with --lora")
    # The name is not compared, as the LoRA's folder may have been renamed.
    if passed and merged and passed != merged.model_copy(update={"name": passed.name}):
        raise InputError(f"--lora {lora}: not the LoRA that {bundle} was converted with ({merged.name})")


def _measure_steps(
    folder: Path,
    manifest: Manifest,
    precision: Precision,
    reference: Mapping[str, Sequence[RecordedCall]],
    report: Callable[[str], None],
) -> list[StepAgreement]:
    measured = []
    for name in reference:
        computed = manifest.step_models[name].precision_in(precision)
        arithmetics: tuple[Arithmetic, ...] = ("plain", "faithful")
        if manifest.target == CORE_AI:
            arithmetics = ("core-ai",)
        elif computed == "fp32":  # its intermediate results are not fp16
            arithmetics = ("plain",)
        for arithmetic in arithmetics:
            report(f"{name} {precision} {arithmetic}")
            measured.append(measure_step(folder, manifest, precision, name, arithmetic, reference[name]))
    return measured
