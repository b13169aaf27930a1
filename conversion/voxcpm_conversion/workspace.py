"""The folder of an unfinished bundle: finished parts survive an interruption, and it is renamed when complete."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from voxcpm_constants.errors import InputError
from voxcpm_conversion.replacing import PLAN_FILE, partial_folder, remove_leftover, replaced_folder

_SCRATCH_FOLDER = ".scratch"


class Workspace:
    """The folder `.NAME.partial` beside the bundle NAME. A part has its final name there only when complete.

    It removes what has its own names; `bundle_folder` has checked that it is not the user's data.
    """

    def __init__(self, bundle: Path, plan: dict[str, object]) -> None:
        """Continue a workspace with the same plan, or start a new one. Raises InputError if it cannot be written."""
        self.bundle = bundle
        self.folder = partial_folder(bundle)
        # Parts of another plan (checkpoint, sizes, versions of tools) cannot be used.
        text = json.dumps(plan, indent=1, sort_keys=True)
        plan_file = self.folder / PLAN_FILE
        try:
            if not (plan_file.is_file() and plan_file.read_text(encoding="utf-8") == text):
                remove_leftover(self.folder)
                self.folder.mkdir(parents=True)
                plan_file.write_text(text, encoding="utf-8")
            shutil.rmtree(self.folder / _SCRATCH_FOLDER, ignore_errors=True)
        except OSError as error:
            raise InputError(f"{bundle.parent}: cannot write a bundle there ({error.strerror})") from None

    def has(self, part: str) -> bool:
        """Whether a part, by its path relative to the bundle, is finished."""
        return (self.folder / part).exists()

    def add(self, part: str, write: Callable[[Path], object]) -> None:
        """Let `write(path)` make a file or folder under a temporary path, then rename it."""
        final = self.folder / part
        # coremltools decides the format by the suffix, so it stays at the end.
        unfinished = final.with_name(f".unfinished-{final.name}")
        final.parent.mkdir(parents=True, exist_ok=True)
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        write(unfinished)
        unfinished.replace(final)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A context with an empty temporary folder, which is removed afterwards, or by the next run."""
        folder = self.folder / _SCRATCH_FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self) -> None:
        """Rename the finished folder to the bundle's name; an existing bundle is removed only now."""
        (self.folder / PLAN_FILE).unlink()
        old = replaced_folder(self.bundle)
        remove_leftover(old)
        if self.bundle.exists():
            self.bundle.replace(old)
        self.folder.replace(self.bundle)
        remove_leftover(old)
