"""The compute unit of each step model on a Mac: the default, the measured one, or the caller's choice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from voxcpm_constants.errors import InputError
from voxcpm_constants.json_files import read_json
from voxcpm_constants.step_models import (
    AUDIO_VAE_DECODER,
    AUDIO_VAE_ENCODER,
    BASE_LM_STEP,
    FEAT_ENCODER,
    LOCDIT_SOLVE,
    LOCDIT_STEP,
    RESIDUAL_LM_STEP,
)
from voxcpm_constants.user_folders import cache_folder
from voxcpm_runtime.argument_types import shown, wrong_type
from voxcpm_runtime.backends.machine import build, chip
from voxcpm_runtime.storage.atomic_file import atomic_file

COMPUTE_UNITS = {"all": "ALL", "cpu": "CPU_ONLY", "cpu_and_gpu": "CPU_AND_GPU", "cpu_and_ne": "CPU_AND_NE"}
"""The names used here -> names in `coremltools.ComputeUnit`."""
AUTO = "auto"
"""For each step model the unit that `doctor` measured on this machine, or the default one."""
OTHERS = "*"
"""In a mapping: all other step models."""
CPU = "cpu"
"""Runs every package."""
PORTABLE, COREAI = "portable", "coreai"
"""Not compute units of Core ML, but names of these backends in their place."""

ComputeUnits = str | Mapping[str, str]
"""A compute unit or "auto" for all step models, or for some of them by name."""

DEFAULT_UNITS = {
    # In the Neural Engine's fp16 a streaming decoder beeps (mobius 16); VoxCPM's and PocketTTS's there use the CPU.
    AUDIO_VAE_ENCODER: CPU,
    AUDIO_VAE_DECODER: CPU,
    # Many small calls without state suit the Neural Engine.
    FEAT_ENCODER: "cpu_and_ne",
    LOCDIT_STEP: "cpu_and_ne",
    LOCDIT_SOLVE: "cpu_and_ne",
    # The Neural Engine's compiler usually rejects writes into a KV cache.
    BASE_LM_STEP: "cpu_and_gpu",
    RESIDUAL_LM_STEP: "cpu_and_gpu",
}
"""The default unit of each step model."""


def chosen_units(
    requested: ComputeUnits, names: Collection[str], measured: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The compute unit of each step model in `names`. measured: overrides the defaults for "auto".

    Raises InputError for an unknown step model or unit.
    """
    by_name = requested if isinstance(requested, Mapping) else {OTHERS: requested}
    for name, unit in by_name.items():
        if name not in (*names, OTHERS):
            known = ", ".join(names)
            raise InputError(f"unknown step model {shown(name)} for compute units: expected one of {known}")
        if not isinstance(unit, str) or unit not in (AUTO, *COMPUTE_UNITS):
            raise wrong_type(unit, "compute units", f"one of {', '.join((AUTO, *COMPUTE_UNITS))}")
    auto = {**DEFAULT_UNITS, **(measured or {})}
    units = {name: by_name.get(name, by_name.get(OTHERS, AUTO)) for name in names}
    return {name: auto[name] if unit == AUTO else unit for name, unit in units.items()}


def is_auto(units: ComputeUnits, name: str) -> bool:
    """Whether the unit of a step model is left to "auto"."""
    return (units if isinstance(units, str) else units.get(name, units.get(OTHERS, AUTO))) == AUTO


def read_compute_units(given: Iterable[str]) -> ComputeUnits:
    """Parse the compute units of a command line: UNIT for all step models, NAME=UNIT for one.

    Raises InputError for duplicates.
    """
    units: dict[str, str] = {}
    for word in given:
        name, equals, unit = word.rpartition("=")
        name, unit = name.strip() if equals else OTHERS, unit.strip()
        if name in units:
            both = f"{units[name]} and {unit}"
            raise InputError(f"compute units {'' if name == OTHERS else f'of {name} '}given twice: {both}")
        units[name] = unit
    return units or AUTO


def measured_units(bundle_digest: str) -> dict[str, str]:
    """The fastest correct unit, or PORTABLE, by step model, as saved by `doctor`; empty if missing or damaged."""
    try:
        units = read_json(_measured_file(bundle_digest))["units"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: unit for name, unit in units if unit in (*COMPUTE_UNITS, PORTABLE)}


def save_measured_units(bundle_digest: str, units: Mapping[str, str]) -> Path:
    """Save compute units by step model, replacing earlier ones, and return the file. Raises OSError."""
    path = _measured_file(bundle_digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"chip": chip(), "build": build(), "bundle": bundle_digest, "units": dict(units)}
    with atomic_file(path) as file:
        file.write(json.dumps(document, indent=1).encode())
    return path


def _measured_file(bundle_digest: str) -> Path:
    # Measurements are valid only for this system build and bundle.
    key = hashlib.sha256(f"{chip()}\n{build()}\n{bundle_digest}".encode()).hexdigest()
    return cache_folder("measured") / f"{key}.json"
