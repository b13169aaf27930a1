"""Where a case happens, and an object whose pickle runs a command."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustness.damage import copy_of_one_precision

LARGE = 100_000_000
"""Bytes of what is too large."""
Act = Callable[[], object]
"""What a command or a method does with the content."""


class Runs:
    """An object whose pickle runs a command when it is read."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._canary}",)


class Place:
    """Where a case happens: `inside` is what may be touched, `outside` has a secret and stays as it is."""

    def __init__(self, bundle: Path, checkpoint: Path, root: Path) -> None:
        self.inside, self.outside = root / "inside", root / "outside"
        self.inside.mkdir()
        self.outside.mkdir()
        self.secret = self.outside / "secret.bin"
        self.canary = self.outside / "canary"
        self._whole, self._checkpoint = bundle, checkpoint

    def bundle(self) -> Path:
        """A copy of the bundle, in int8."""
        copy_of_one_precision(self._whole, self.inside / "bundle")
        return self.inside / "bundle"

    def checkpoint(self) -> Path:
        """A copy of the checkpoint."""
        return Path(shutil.copytree(self._checkpoint, self.inside / "checkpoint"))
