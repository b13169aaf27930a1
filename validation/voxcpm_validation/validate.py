"""A bundle against the checkpoint it came from: step models, then the whole loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import STEP_MODEL_NAMES, Precision
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_runtime.backends import Backend
from voxcpm_runtime.bundle import open_bundle
from voxcpm_runtime.letters import spelled, spelled_transcript
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.end_to_end import EndToEnd, cases, compare_speech, speak_upstream
from voxcpm_validation.reference import DEFAULT_TEXT, record_reference
from voxcpm_validation.report import Report
from voxcpm_validation.step_agreement import Arithmetic, StepAgreement, measure_step
from voxcpm_validation.upstream import load_upstream

_TOOLS = ("voxcpm", "torch", "coremltools", "onnxruntime", "numpy")

# fp16-faithful arithmetic says nothing about an fp32 package: none of its intermediates are fp16.
ARITHMETICS: dict[Precision, tuple[Arithmetic, ...]] = {
    "fp32": ("plain",),
    "fp16": ("plain", "faithful"),
    "int8": ("plain", "faithful"),
}


def validate_bundle(
    bundle: Path,
    checkpoint: str,
    *,
    precisions: Sequence[Precision] | None = None,
    text: str = DEFAULT_TEXT,
    prompt_wav: Path | None = None,
    prompt_text: str | None = None,
    patches: int = 12,
    seed: int = 0,
    backend: Backend = "auto",
    report: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measure everything; `report` is told what runs. Raises InputError for a checkpoint of another bundle."""
    opened = open_bundle(bundle)
    manifest, folder = opened.manifest, opened.folder
    source = Checkpoint.open(checkpoint)
    if source.sha256() != manifest.source.sha256:
        raise InputError(
            f"{checkpoint}: not the checkpoint that {bundle} was converted from ({manifest.source.checkpoint})"
        )
    chosen = tuple(p for p in manifest.precisions if precisions is None or p in precisions)
    if not chosen:
        raise InputError(
            f"{bundle} has the precisions {', '.join(manifest.precisions)}; asked for {', '.join(precisions or ())}"
        )
    # Both sides get what the runtime would say; it leaves published vocabularies' texts as they are.
    text = spelled(text, opened.tokenizer)
    transcript = spelled_transcript(prompt_text or text, opened.tokenizer)
    report("upstream")
    model = load_upstream(source.folder, max_length=manifest.sizes.kv_length)
    steps = list(_measure_steps(folder, manifest, chosen, model, text, patches, seed, report))
    spoken: list[EndToEnd] = []
    with cases(
        model, text, patches=patches, seed=seed, prompt_wav=prompt_wav, prompt_text=transcript
    ) as utterances:
        expected = [speak_upstream(model, case) for case in utterances]
        for precision in chosen:
            tts = VoxCPM.from_bundle(folder, precision=precision, backend=backend)
            for case, upstream in zip(utterances, expected, strict=True):
                report(f"{case.name} {precision}")
                spoken.append(compare_speech(tts, case, upstream))
    return Report(
        bundle=str(bundle),
        checkpoint=manifest.source.checkpoint,
        tools={name: version(name) for name in _TOOLS},
        steps=tuple(steps),
        end_to_end=tuple(spoken),
    )


def _measure_steps(
    folder: Path,
    manifest: Manifest,
    precisions: Sequence[Precision],
    model: Any,
    text: str,
    patches: int,
    seed: int,
    report: Callable[[str], None],
) -> list[StepAgreement]:
    reference = record_reference(
        model, manifest.architecture, manifest.sizes, text=text, patches=patches, seed=seed
    )
    measured = []
    for name in STEP_MODEL_NAMES:
        for precision in precisions:
            for arithmetic in ARITHMETICS[precision]:
                report(f"{name} {precision} {arithmetic}")
                measured.append(measure_step(folder, manifest, precision, name, arithmetic, reference[name]))
    return measured
