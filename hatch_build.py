"""The built-in voice in a wheel: the bundle of `make wheel`, or else the checkpoint's weights, never both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUNDLE_VARIABLE = "VOXCPM_COREML_WHEEL_BUNDLE"
CHECKPOINT = "conversion/voxcpm_conversion/default_checkpoint"
BUNDLE_IN_WHEEL = "voxcpm_runtime/default_bundle"


class VoiceHook(BuildHookInterface[Any]):
    """Adds files to a wheel; an editable installation needs none, as it reads the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the bundle that the variable names, or the weights; `exclude` in pyproject.toml leaves these out."""
        if version == "editable":
            return
        root = Path(self.root)
        if bundle := os.environ.get(BUNDLE_VARIABLE):
            files = [file for file in (root / bundle).rglob("*") if file.is_file()]
            if root / bundle / "manifest.json" not in files:
                # A line without a traceback, as a build hook's exception would have.
                raise SystemExit(
                    f"error: {BUNDLE_VARIABLE}={bundle}: expected a bundle, found no manifest.json"
                )
            home = {file: f"{BUNDLE_IN_WHEEL}/{file.relative_to(root / bundle).as_posix()}" for file in files}
        else:
            weights = (root / CHECKPOINT).glob("*.safetensors")
            home = {file: f"voxcpm_conversion/default_checkpoint/{file.name}" for file in weights}
        build_data["force_include"].update({str(file): place for file, place in home.items()})
