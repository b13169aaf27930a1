"""What a conversion may replace: a bundle with --overwrite, its own leftovers, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from voxcpm_constants.errors import BundleError, InputError
from voxcpm_constants.manifest import CONSTANTS_FOLDER, MANIFEST_FILE, Manifest, has_other_layout
from voxcpm_constants.step_models import PRECISIONS
from voxcpm_constants.user_folders import user_path

PLAN_FILE, PARTS_FILE = "plan.json", "parts.json"
BUNDLE, TEMPORARY, REPLACED = "bundle", "temporary", "replaced"
_PARTIAL_ENTRIES = {PLAN_FILE, PARTS_FILE, BUNDLE, TEMPORARY, REPLACED}
"""All possible entries of a `partial_folder` (see `workspace`)."""


def bundle_folder(output: Path, inputs: Iterable[str | Path], *, overwrite: bool) -> Path:
    """Absolute path of the bundle to write at `output`, with `..` and links resolved.

    inputs: what the same conversion reads; hub ids are ignored.
    Raises InputError for an output that exists, unless `overwrite` is set and it is a bundle that neither is nor
    contains an input or the current folder; and if the name of the conversion's temporary folder is taken.
    """
    folder = Path(os.path.realpath(output))
    if os.path.lexists(folder):
        if not folder.is_dir():
            raise InputError(f"{output}: not a folder; choose another output")
        if not overwrite:
            raise InputError(f"{output}: already exists; choose another name, or replace it with --overwrite")
        for place in (place for path in inputs for place in _locations(user_path(path))):
            if _contains(folder, place):
                raise InputError(
                    f"{output}: replacing it would delete {place}, which the conversion reads; choose another output"
                )
        if _contains(folder, Path.cwd()):
            raise InputError(f"{output}: replacing it would delete the current folder; choose another output")
        if not _is_bundle(folder):
            raise InputError(
                f"{output}: --overwrite replaces only bundles, but this folder has no valid {MANIFEST_FILE}; "
                "choose another name, or move it away"
            )
    partial = partial_folder(folder)
    if os.path.lexists(partial) and not _is_leftover(partial):
        raise InputError(
            f"{partial}: a conversion into {output} needs this name, but it is taken; "
            "choose another output, or move it away"
        )
    return folder


def partial_folder(bundle: Path) -> Path:
    """The temporary folder in which a bundle is built."""
    return bundle.with_name(f".{bundle.name}.partial")


def _locations(path: Path) -> Iterator[Path]:
    """All locations of an input: its path, a link's target, and targets of links inside it, as in the hub's cache."""
    if not path.exists():
        return
    yield from {path.absolute(), path.resolve()}
    if path.is_dir():
        yield from (entry.resolve() for entry in path.iterdir() if entry.is_symlink())


def _contains(folder: Path, place: Path) -> bool:
    """Whether `place` is the folder or inside it, also on case-insensitive file systems."""
    return any(at.exists() and at.samefile(folder) for at in (place, *place.parents))


def _is_bundle(folder: Path) -> bool:
    try:
        Manifest.read(folder)
    except BundleError:
        names = {entry.name for entry in folder.iterdir()}
        return has_other_layout(folder) and names <= {CONSTANTS_FOLDER, *PRECISIONS}
    return True


def _is_leftover(folder: Path) -> bool:
    """Whether a folder was left by an interrupted conversion."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    names = {entry.name for entry in folder.iterdir()}
    return names <= _PARTIAL_ENTRIES
