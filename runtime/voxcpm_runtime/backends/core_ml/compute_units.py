"""Which of a Mac's compute units each step model runs on: usual ones in a table, measured ones, and the caller's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from voxcpm_constants.errors import InputError
from voxcpm_constants.step_models import (
    AUDIO_VAE_DECODER,
    AUDIO_VAE_ENCODER,
    BASE_LM_STEP,
    FEAT_ENCODER,
    LOCDIT_SOLVE,
    LOCDIT_STEP,
    RESIDUAL_LM_STEP,
)
from voxcpm_runtime.argument_types import shown, wrong_type

COMPUTE_UNITS = {"all": "ALL", "cpu": "CPU_ONLY", "cpu_and_gpu": "CPU_AND_GPU", "cpu_and_ne": "CPU_AND_NE"}
"""The names used here -> names in `coremltools.ComputeUnit`."""
AUTO = "auto"
"""What was measured on this machine, or the usual unit, for each step model."""
OTHERS = "*"
"""In a mapping: every step model that it does not name."""
CPU = "cpu"
"""Takes every package."""
PORTABLE = "portable"
"""No compute unit of Core ML: what stands for the portable backend where a unit is named."""

COREAI = "coreai"
"""Likewise for Core AI, which chooses its units by itself."""

ComputeUnits = str | Mapping[str, str]
"""A compute unit or "auto" for all step models, or for some of them by name."""

USUAL = {
    # A streaming decoder in the Neural Engine's fp16 beeps (mobius 16); VoxCPM's and PocketTTS's run on the CPU.
    AUDIO_VAE_ENCODER: CPU,
    AUDIO_VAE_DECODER: CPU,
    # Many small calls without state: what the Neural Engine is for.
    FEAT_ENCODER: "cpu_and_ne",
    LOCDIT_STEP: "cpu_and_ne",
    LOCDIT_SOLVE: "cpu_and_ne",
    # The Neural Engine's compiler refuses writes into a KV cache more often than not.
    BASE_LM_STEP: "cpu_and_gpu",
    RESIDUAL_LM_STEP: "cpu_and_gpu",
}
"""The usual unit of each step model."""


def chosen_units(
    asked: ComputeUnits, names: Collection[str], measured: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The compute unit of each step model.

    asked: a unit or "auto" for all step models, or a mapping from names to them, in which "*" stands for all other
    step models. names: the step models. measured: by name, what "auto" prefers to the usual unit.

    Raises InputError for an unknown name or unit.
    """
    wanted = asked if isinstance(asked, Mapping) else {OTHERS: asked}
    for name, unit in wanted.items():
        if name not in (*names, OTHERS):
            said = name if isinstance(name, str) else shown(name)
            raise InputError(
                f"unknown step model {said} for compute units: expected one of {', '.join(names)}"
            )
        if not isinstance(unit, str) or unit not in (AUTO, *COMPUTE_UNITS):
            raise wrong_type(unit, "compute units", f"one of {', '.join((AUTO, *COMPUTE_UNITS))}")
    units = {name: wanted.get(name, wanted.get(OTHERS, AUTO)) for name in names}
    known = measured or {}
    return {name: (known.get(name) or USUAL[name]) if u == AUTO else u for name, u in units.items()}


def is_auto(asked: ComputeUnits, name: str) -> bool:
    """Whether the unit of a step model is left to "auto"."""
    return (asked if isinstance(asked, str) else asked.get(name, asked.get(OTHERS, AUTO))) == AUTO


def read_compute_units(given: Iterable[str]) -> ComputeUnits:
    """The compute units in a command's words: UNIT for all step models, NAME=UNIT for one of them.

    Raises InputError for two words about the same step models, and for NAME=UNIT with one of them only.
    """
    asked: dict[str, str] = {}
    for word in given:
        name, equals, unit = word.rpartition("=")
        name, unit = name.strip() if equals else OTHERS, unit.strip()
        if equals and not (name and unit):
            missing = "unit after" if name else "step model before"
            raise InputError(
                f"compute units {word!r}: the {missing} = is missing; expected NAME=UNIT or UNIT"
            )
        if name in asked:
            both = f"{asked[name]} and {unit}"
            raise InputError(f"compute units {'' if name == OTHERS else f'of {name} '}given twice: {both}")
        asked[name] = unit
    return asked or AUTO
