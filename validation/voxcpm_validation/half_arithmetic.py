"""Half arithmetic of two kinds beside each other: Core AI's own, and the portable executor's model of it.

The portable executor's fp16-faithful mode rounds every intermediate result of a macOS 14 package to fp16. Both are
compared with upstream's fp32 modules and with each other, on the same recorded calls and in the same utterance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest, Source
from voxcpm_constants.step_models import Precision
from voxcpm_constants.targets import CORE_AI
from voxcpm_runtime.backends.step_function import Floats
from voxcpm_runtime.bundle.opening import choose_precision, open_bundle
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.options import SEGMENT_TOKENS
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.end_to_end import Case
from voxcpm_validation.measures import Agreement, agreement
from voxcpm_validation.reference import RecordedCall
from voxcpm_validation.step_agreement import Arithmetic, call_lengths, over_calls, replay, step_runner

_HALF: Precision = "fp16"
UTTERANCE = "whole utterance, latents"
"""What stands in place of a step model's name for an utterance from the same noise."""


class HalfArithmetic(BaseModel):
    """Core AI's half arithmetic (`core_ai`) and the model of it (`faithful`), for the calls of one length.

    Differences are those of the first output, over all of its values in all of these calls.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    step_model: str
    length: int
    """Along the axis that may have several; the number of patches of an utterance."""
    calls: int
    core_ai: Agreement
    """Core AI with upstream."""
    faithful: Agreement
    """The portable executor's fp16-faithful mode with upstream."""
    between: Agreement
    """Core AI with the fp16-faithful mode."""


def measure_half(
    core_ai: Path,
    core_ml: Path,
    reference: Mapping[str, Sequence[RecordedCall]],
    report: Callable[[str], None] = lambda line: None,
) -> tuple[HalfArithmetic, ...]:
    """Replay recorded calls in both arithmetics, step model by step model. `report` is called with each name.

    core_ai: a bundle for macOS 27. core_ml: one for an earlier system, of the same checkpoint. Both have fp16.
    """
    manifests: dict[Arithmetic, tuple[Path, Manifest]] = {
        "core-ai": (core_ai, Manifest.read(core_ai)),
        "faithful": (core_ml, Manifest.read(core_ml)),
    }
    found = []
    for name, calls in reference.items():
        report(f"{name} {_HALF}, both arithmetics")
        results = {
            arithmetic: _replayed(folder, manifest, name, arithmetic, calls)
            for arithmetic, (folder, manifest) in manifests.items()
        }
        declared = manifests["core-ai"][1].step_models[name]
        first, lengths = declared.outputs[0].name, call_lengths(declared, calls)
        expected = [call.outputs for call in calls]
        for length in sorted(set(lengths)):
            chosen = [n == length for n in lengths]
            found.append(
                HalfArithmetic(
                    step_model=name,
                    length=length,
                    calls=sum(chosen),
                    core_ai=over_calls(results["core-ai"], expected, first, chosen),
                    faithful=over_calls(results["faithful"], expected, first, chosen),
                    between=over_calls(results["core-ai"], results["faithful"], first, chosen),
                )
            )
    return tuple(found)


def measure_half_utterance(core_ai: Path, core_ml: Path, case: Case, upstream: Floats) -> HalfArithmetic:
    """Speak a case in both arithmetics with the same noise. upstream: its latents (patches, frames, latent_dim)."""
    ours = _latents(VoxCPM.from_bundle(core_ai, _HALF, "coreai"), case)
    opened = open_bundle(core_ml, _HALF)
    models = {
        name: step_runner(core_ml, opened.manifest, _HALF, name, "faithful")
        for name in opened.manifest.step_models
    }
    driver = Driver(opened.architecture, opened.manifest.sizes, opened.constants, models)
    faithful = _latents(VoxCPM(opened, driver, "faithful"), case)
    shared = min(len(ours), len(faithful), len(upstream))
    ours, faithful, upstream = ours[:shared], faithful[:shared], upstream[:shared]
    return HalfArithmetic(
        step_model=f"{case.name}: {UTTERANCE}",
        length=shared,
        calls=1,
        core_ai=agreement(ours, upstream),
        faithful=agreement(faithful, upstream),
        between=agreement(ours, faithful),
    )


def check_beside(core_ai: Manifest, source: Source, beside: Path) -> Path:
    """The folder of a bundle whose half arithmetic can be compared. source: of the Core AI bundle's checkpoint.

    Raises InputError unless both have fp16, the same checkpoint and sizes, and only the first is Core AI's.
    """
    folder = open_bundle(beside, _HALF).folder
    other = Manifest.read(folder)
    choose_precision(Path("the bundle"), core_ai, _HALF)
    if core_ai.target != CORE_AI or other.target == CORE_AI:
        raise InputError(
            f"--beside {beside}: expected a bundle for macos14 or macos15 beside one for macos27"
        )
    if (other.source.sha256, other.source.lora) != (source.sha256, source.lora):
        raise InputError(
            f"--beside {beside}: not converted from the same checkpoint ({other.source.checkpoint})"
        )
    if other.sizes != core_ai.sizes:
        raise InputError(f"--beside {beside}: converted for other sizes; convert it with the same options")
    return folder


def _replayed(
    folder: Path, manifest: Manifest, name: str, arithmetic: Arithmetic, calls: Sequence[RecordedCall]
) -> list[dict[str, Floats]]:
    runner = step_runner(folder, manifest, _HALF, name, arithmetic)
    return replay(runner, calls, stateful=bool(manifest.step_models[name].state))


def _latents(tts: VoxCPM, case: Case) -> Floats:
    with tts:
        return tts.speak(
            case.text,
            rng=np.random.default_rng(case.seed),
            retry_badcase=False,
            min_len=case.min_len,
            max_len=case.max_len,
            segment_tokens=SEGMENT_TOKENS,
        ).latents
