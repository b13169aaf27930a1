"""Packages in the form that Core ML or Core AI loads, compiled once a machine; that takes minutes for a large one.

A compiled package lies in the user's cache folder under a name that holds the package's digest and the compiler: for
Core ML the system's build. Compute units are not part of it: Core ML compiles for all of them, and chooses when it
loads.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from voxcpm_constants.errors import os_reason
from voxcpm_constants.macos import macos
from voxcpm_constants.user_folders import CACHE_VARIABLE, cache_folder

COMPILED = ".mlmodelc"
_FOLDER = "compiled"
DIGITS = 32
"""How much of a digest the name of a compiled form begins with."""
LOCK = ".lock"
_LOADED = ".loaded"
# Longer than any compilation that is known of. Whoever waits longer compiles for itself.
LOCK_SECONDS = 1800

Compile = Callable[[Path, Path], None]
"""compile(package, folder to make). It raises OSError if the folder cannot be made, and what the compiler raises."""


class CompiledPackage:
    """The compiled form of a package: shipped beside it, or in the user's cache, or compiled for this process alone.

    digest: identifies the package's content. compiler: identifies what compiles; by default the system's build. suffix:
    the end of a compiled form's name. A folder for this process alone is removed with this object.
    """

    def __init__(
        self,
        package: Path,
        digest: str,
        compile_with: Compile,
        *,
        compiler: str | None = None,
        suffix: str = COMPILED,
    ) -> None:
        self._package = package
        self._digest = digest[:DIGITS]
        self._compile = compile_with
        self._compiler, self._suffix = compiler, suffix
        self._own: Path | None = None

    @property
    def shipped(self) -> Path | None:
        """The compiled form that a bundle brings beside the package, if it does."""
        folder = self._package.with_suffix(self._suffix)
        return folder if folder.is_dir() else None

    def loaded_before(self, compiled: Path, use: str) -> bool:
        """Whether `record_load` was called for this compiled form. use: the function and the compute unit."""
        try:
            return self._record(use).read_text(encoding="utf-8") == str(mark(compiled))
        except OSError:
            return False

    def record_load(self, compiled: Path, use: str) -> None:
        """Record that the compiled form was loaded; without a cache that can be written, do nothing."""
        with contextlib.suppress(OSError):
            self._record(use).write_text(str(mark(compiled)), encoding="utf-8")

    def _record(self, use: str) -> Path:
        return cache_folder(_FOLDER) / f"{self._name}.{use}{_LOADED}"

    def path(self, damaged: int | None = None) -> tuple[Path, bool]:
        """The compiled form, and whether this call made it.

        damaged: `mark` of a form that cannot be loaded; it is made again, unless another process has done so by now.
        Where the cache cannot be written, a warning says so. Raises what the compiler raises.
        """
        if self._own is not None:
            return self._own, False
        try:
            return self.cached(damaged)
        except (OSError, NotImplementedError) as error:
            reason = os_reason(error) if isinstance(error, OSError) else "it knows no locks"
            warnings.warn(
                f"{cache_folder(_FOLDER)}: compiled step models cannot be saved there ({reason}), so that every start "
                f"compiles them again; free space, or set {CACHE_VARIABLE} to another folder",
                stacklevel=2,
            )
        return self._temporary(), True

    def cached(self, damaged: int | None = None) -> tuple[Path, bool]:
        """The compiled form in the user's cache, and whether this call made it: what `path` does first.

        Raises OSError where the cache cannot be written, NotImplementedError where it knows no locks, and what the
        compiler raises.
        """
        root = cache_folder(_FOLDER)
        entry = root / f"{self._name}{self._suffix}"
        if damaged is None and entry.is_dir():
            return entry, False
        with _locked(root, self._name):
            return self._made(entry, damaged)

    @property
    def _name(self) -> str:
        system = macos()
        compiler = self._compiler or (system.build if system else "")
        return f"{self._digest}-{compiler}"

    def _made(self, entry: Path, damaged: int | None) -> tuple[Path, bool]:
        """The entry, made now if it is missing or damaged. Only the lock's holder may call this."""
        if entry.is_dir() and mark(entry) != damaged:
            return entry, False
        # Damaged, of an earlier build of the system, or left by a process that was killed.
        for old in (*entry.parent.glob(f"{self._digest}-*{self._suffix}"), unfinished := _unfinished(entry)):
            shutil.rmtree(old, ignore_errors=True)
        for record in entry.parent.glob(f"{self._digest}-*{_LOADED}"):
            record.unlink(missing_ok=True)
        try:
            self._compile(self._package, unfinished)
            unfinished.replace(entry)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return entry, True

    def _temporary(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="voxcpm-coreml-compiled-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        compiled = folder / f"{self._package.stem}{self._suffix}"
        self._compile(self._package, compiled)
        self._own = compiled
        return compiled


def mark(compiled: Path) -> int:
    """A number that another compiled form in the same place does not have; 0 for a form that is gone."""
    try:
        return compiled.stat().st_mtime_ns
    except OSError:
        return 0


def _unfinished(entry: Path) -> Path:
    return entry.with_name(f".{entry.name}")


@contextlib.contextmanager
def _locked(root: Path, name: str) -> Iterator[None]:
    """One process at a time for each name. Raises OSError where the lock cannot be had."""
    from filelock import FileLock  # takes time to import, and a start that finds its form does not need it

    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{name}{LOCK}", timeout=LOCK_SECONDS):
        yield
