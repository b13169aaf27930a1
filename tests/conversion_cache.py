"""A cache of conversions across test runs, in build/test-bundles, keyed by a digest of their inputs."""

import hashlib
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

from filelock import FileLock

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = ("constants", "conversion", "tests/shared_bundles.py")
"""The sources of conversion, with the built-in checkpoint, and the code that calls them."""

PACKAGES = (
    "coreai-core", "coreai-opt", "coreai-torch", "coremltools", "numpy", "safetensors", "scipy", "tokenizers", "torch",
    "torchao",
)  # fmt: skip
_DIGITS = 16


@dataclass(frozen=True)
class ConversionCache:
    folder: Path = REPOSITORY / "build" / "test-bundles"
    tree: Path = REPOSITORY
    newest: int = 4
    """Entries to keep per name."""

    def copy(self, name: str, arguments: object, make: Callable[[Path], object], to: Path) -> None:
        """Write what `make(folder)` writes, which `arguments` decide, to the folder `to`: a copy of the kept files.

        It is a copy so that a test which changes files spoils no later run. `make` gets a folder called `name`. An
        entry is complete when it has its name. Any number of processes may call this at the same time.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        entry = self.folder / f"{name}-{self._digest(arguments)}"
        with FileLock(self.folder / f"{name}.lock"):
            if not entry.is_dir():
                unfinished = self.folder / f".{name}"
                shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process
                make(unfinished / name)
                (unfinished / name).rename(entry)
                shutil.rmtree(unfinished)
                for old in sorted(self.folder.glob(f"{name}-{'?' * _DIGITS}"), key=_age)[self.newest :]:
                    shutil.rmtree(old)
            os.utime(entry)
            shutil.copytree(entry, to, symlinks=True)

    def _digest(self, arguments: object) -> str:
        return hashlib.sha256(f"{self._tools_and_sources} {arguments!r}".encode()).hexdigest()[:_DIGITS]

    @cached_property
    def _tools_and_sources(self) -> str:
        digest = hashlib.sha256(repr(versions()).encode())
        found = [
            path for source in SOURCES for path in (self.tree / source, *(self.tree / source).rglob("*"))
        ]
        for path in sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(self.tree)} {content}\n".encode())
        return digest.hexdigest()


def _age(entry: Path) -> float:
    return -entry.stat().st_mtime


def versions() -> dict[str, str]:
    """Versions of Python and the converting packages. Core AI's may be absent."""
    found = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    return {"python": platform.python_version(), **{name: found[name] for name in PACKAGES if name in found}}
