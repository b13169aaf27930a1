"""The bundle to use if none is named: the one in this package, or one that is made and cached when it is first needed.

`make wheel` puts a bundle into the package. Otherwise an entry point makes it, as commands are found, and is imported
only then: finding a bundle that is there imports neither the package that makes it nor PyTorch.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import time
import warnings
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path

from voxcpm_constants.errors import BundleError, InputError, os_reason
from voxcpm_constants.manifest import MANIFEST_FILE, Manifest, check_files
from voxcpm_constants.user_folders import CACHE_VARIABLE, cache_folder

GROUP = "voxcpm_coreml.default_bundle"
PACKAGED = Path(__file__).parents[1] / "default_bundle"
"""Where a wheel carries the bundle (hatch_build.py); a checkout has nothing there."""

_LONGEST_WAIT = 600
"""Seconds for another process to finish the bundle, which takes it about half a minute."""
_IN_USE = 3600
"""Seconds since its last use for which a bundle of another version of the voice is not removed."""
_TOOLS = ("coremltools", "torch", "voxcpm-coreml")


def default_bundle() -> Path:
    """Folder of the default bundle, which the first call on a machine makes if no wheel carries it.

    Making it converts the built-in voice, which takes about half a minute. Raises InputError if that is not possible
    here, and what the conversion raises.
    """
    if PACKAGED.is_dir():
        return PACKAGED
    return _made()


def repaired_default_bundle(damage: BundleError) -> Path:
    """Folder of the default bundle, made again after an error that says what is wrong with it; a warning says so.

    Raises BundleError if the bundle is part of the installed package, or if its files are what the manifest says.
    """
    if PACKAGED.is_dir():
        raise BundleError(
            f"the built-in voice of this installation is damaged ({damage}); "
            "install it again: pip install --force-reinstall --no-deps, with the wheel that it came from"
        ) from None
    return _made(damage)


def cached_folder(made_by: EntryPoint) -> Path:
    """Where the bundle is cached. The name changes with the files that make and declare it, and with tools' versions.

    Raises ModuleNotFoundError for a tool that is not installed.
    """
    digest = hashlib.sha256("|".join(version(tool) for tool in _TOOLS).encode())
    # The manifest's schema and the step models' declarations are of voxcpm_constants.
    for name in (made_by.module.partition(".")[0], "voxcpm_constants"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        package = Path(spec.origin).parent
        for file in sorted(package.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(file.relative_to(package).as_posix().encode())
                digest.update(file.read_bytes())
    return cache_folder("bundles") / f"default-{digest.hexdigest()[:16]}"


def maker() -> EntryPoint:
    """The function that makes the bundle in a folder that it is given. Raises InputError if none is installed."""
    found = tuple(entry_points(group=GROUP))
    if not found:
        raise InputError("no bundle was given, and this installation has no built-in voice; name a bundle")
    return found[0]


def _made(damage: BundleError | None = None) -> Path:
    made_by = maker()
    try:
        folder = cached_folder(made_by)
        if damage is not None or not (folder / MANIFEST_FILE).is_file():
            _make(made_by, folder, damage)
        # A folder's time is that of its last use. It matters only to `_remove_earlier`.
        with contextlib.suppress(OSError):
            os.utime(folder)
    except ModuleNotFoundError as error:
        raise InputError(
            f"no bundle was given, and making the default one needs {error.name}: name a bundle, install a wheel "
            'of `make wheel`, which carries one, or install what is needed: pip install "voxcpm-coreml[convert]"'
        ) from None
    return folder


def _make(made_by: EntryPoint, folder: Path, damage: BundleError | None) -> None:
    """Make the bundle unless another process has made it meanwhile; a damaged one stays until the new one is whole."""
    from filelock import (
        FileLock,
        Timeout,
    )  # takes time to import, and only the first call on a machine needs it

    lock = folder.with_name(f"{folder.name}.lock")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=_LONGEST_WAIT):
            if damage is None and (folder / MANIFEST_FILE).is_file():
                return
            if damage is not None and _whole(folder):
                return
            make = made_by.load()
            if damage is not None:
                warnings.warn(
                    f"the built-in voice's bundle is damaged and is made again ({damage})", stacklevel=2
                )
            fresh = folder.with_name(f"{folder.name}.new")
            # A run that was killed after its conversion has left a whole one.
            if not _whole(fresh):
                shutil.rmtree(fresh, ignore_errors=True)
                make(fresh)
            if folder.is_dir():
                shutil.rmtree(folder)
            fresh.replace(folder)
        _remove_earlier(folder)
    except Timeout:
        raise InputError(
            f"{lock}: another process has been making the built-in voice's bundle for {_LONGEST_WAIT} s; end it, "
            "or wait and try again"
        ) from None
    except OSError as error:
        raise InputError(
            f"{folder.parent}: the built-in voice's bundle cannot be written there ({os_reason(error)}); "
            f"set {CACHE_VARIABLE} to a folder that can be written"
        ) from None


def _remove_earlier(current: Path) -> None:
    """Remove the built-in voice's bundles beside the current one, except for those in use. Raises nothing.

    Each version of the voice, of its conversion and of the tools has a bundle of its own, which nothing else removes.
    In use are one that another process is making, and one of another installation that has spoken lately.
    """
    from filelock import FileLock, Timeout

    for earlier in sorted(current.parent.glob("default-*")):
        name = earlier.name.partition(".")[0]
        with contextlib.suppress(OSError, Timeout):
            if (
                name == current.name
                or not earlier.is_dir()
                or time.time() - earlier.stat().st_mtime < _IN_USE
            ):
                continue
            with FileLock(current.with_name(f"{name}.lock"), timeout=0):
                # Renamed first, so that no process finds a part of it.
                removed = earlier.with_name(f"{name}.old")
                earlier.replace(removed)
                shutil.rmtree(removed)


def _whole(folder: Path) -> bool:
    try:
        manifest = Manifest.read(folder)
        check_files(folder, manifest.files, digests=True)
        manifest.check_nothing_else(folder, manifest.precisions)
    except BundleError:
        return False
    return True
