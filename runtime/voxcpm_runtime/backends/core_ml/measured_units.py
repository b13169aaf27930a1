"""The compute unit of each step model that `doctor` found to be the fastest correct one, saved for this machine.

    measured/<key>.json in the user's cache folder; the key is of chip, system build and the bundle's digest

An update of the system or another bundle has another key, so what was measured before says nothing about it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from voxcpm_constants.json_files import read_json
from voxcpm_constants.user_folders import cache_folder
from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS, PORTABLE
from voxcpm_runtime.backends.machine import build, chip
from voxcpm_runtime.storage.whole_file import whole_file

KIND = "measured"


def measured_units(bundle_digest: str) -> dict[str, str]:
    """Compute unit, or PORTABLE, by step model, as `save_measured_units` saved them; empty if nothing can be read."""
    path = _path(bundle_digest)
    try:
        document = read_json(path)
    except (OSError, ValueError):
        return {}
    units = document.get("units") if isinstance(document, dict) else None
    if not isinstance(units, dict):
        return {}
    return {name: unit for name, unit in units.items() if unit in (*COMPUTE_UNITS, PORTABLE)}


def save_measured_units(bundle_digest: str, units: Mapping[str, str]) -> Path:
    """Save compute units by step model, and forget what was saved before. Raises OSError if that is impossible."""
    path = _path(bundle_digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"chip": chip(), "build": build(), "bundle": bundle_digest, "units": dict(units)}
    with whole_file(path) as file:
        file.write(json.dumps(document, indent=1).encode())
    return path


def _path(bundle_digest: str) -> Path:
    key = hashlib.sha256(f"{chip()}\n{build()}\n{bundle_digest}".encode()).hexdigest()
    return cache_folder(KIND) / f"{key}.json"
