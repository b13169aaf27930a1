"""What a conversion may replace: a bundle where --overwrite asks for it, its own leftovers, and nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from voxcpm_constants.errors import BundleError, InputError
from voxcpm_constants.json_files import read_json
from voxcpm_constants.manifest import MANIFEST_FILE, Manifest, check_files
from voxcpm_constants.user_folders import user_path

PLAN_FILE = "plan.json"


def bundle_folder(output: Path, inputs: Iterable[str | Path], *, overwrite: bool) -> Path:
    """Absolute path of the bundle to write at `output`, with `..` and links resolved.

    inputs: what the same conversion reads; hub ids, for which no such path exists, are ignored.
    Raises InputError for an output that exists, unless `overwrite` is given and it is a bundle that neither is nor
    holds an input or the current folder; and for sibling folders that have the conversion's own names, but that no
    conversion left.
    """
    folder = Path(os.path.realpath(output))
    read = [place for given in inputs for place in _places(user_path(given))]
    if os.path.lexists(folder):
        _check_kind(output, folder)
        if not overwrite:
            raise InputError(f"{output}: already exists; choose another name, or replace it with --overwrite")
        _check_holds_none(output, folder, read)
        if not _is_bundle(folder):
            raise InputError(
                f"{output}: --overwrite replaces a bundle, but this folder has no bundle's {MANIFEST_FILE}; "
                "choose another name, or move it away"
            )
    for sibling in (partial_folder(folder), replaced_folder(folder)):
        if os.path.lexists(sibling):
            _check_kind(sibling, sibling)
            _check_holds_none(sibling, sibling, read)
            if not _is_leftover(sibling):
                raise InputError(
                    f"{sibling}: converting into {output} needs this name, but no conversion left what is there; "
                    "choose another output, or move it away"
                )
    return folder


def partial_folder(bundle: Path) -> Path:
    """The temporary folder in which a bundle is built."""
    return bundle.with_name(f".{bundle.name}.partial")


def replaced_folder(bundle: Path) -> Path:
    """The folder that holds the earlier bundle until the new one has its name."""
    return bundle.with_name(f".{bundle.name}.replaced")


def remove_leftover(folder: Path) -> None:
    """Remove a leftover. The file that identifies it as one is deleted last, in case this is interrupted."""
    if folder.is_dir():
        empty_leftover(folder)
    shutil.rmtree(folder, ignore_errors=True)


def empty_leftover(folder: Path) -> None:
    """Remove everything in a leftover: files last, among them the one that identifies it as one."""
    entries = list(folder.iterdir())
    folders = [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]
    for entry in folders:
        shutil.rmtree(entry, ignore_errors=True)
    for entry in entries:
        if entry not in folders:
            entry.unlink(missing_ok=True)


def put_back(bundle: Path) -> None:
    """Give an earlier bundle its name again if a run ended between the two renames that replace it.

    Raises OSError. A leftover whose removal was interrupted is no bundle any more, and stays where it is.
    """
    old = replaced_folder(bundle)
    if not os.path.lexists(bundle) and _is_whole_bundle(old):
        old.replace(bundle)


def is_finished(folder: Path, plan: Mapping[str, object]) -> bool:
    """Whether a conversion with this plan was interrupted just before its folder was renamed.

    The plan is gone by then: the manifest, which is written last, says what was planned.
    """
    if not _is_whole_bundle(folder):
        return False
    made = Manifest.read(folder).model_dump(mode="json")
    source = made["source"]
    found = {"schema": made["schema_version"], "source": source["sha256"], "lora": source["lora"]}
    found |= {name: made[name] for name in ("sizes", "target", "kv_cache", "tools")}
    return all(name in plan and plan[name] == value for name, value in found.items())


def _places(given: Path) -> Iterator[Path]:
    """All locations of an input: its path, a link's target, and targets of links in it, as in the hub's cache."""
    if not given.exists():
        return
    yield from {given.absolute(), given.resolve()}
    if given.is_dir():
        yield from (entry.resolve() for entry in given.iterdir() if entry.is_symlink())


def _check_kind(named: Path, folder: Path) -> None:
    if folder.is_symlink() or not folder.is_dir():
        raise InputError(f"{named}: what is here is not a folder; choose another output")


def _check_holds_none(named: Path, folder: Path, inputs: Iterable[Path]) -> None:
    for place in inputs:
        if _holds(folder, place):
            raise InputError(
                f"{named}: replacing it would delete {place}, which the conversion reads; choose another output"
            )
    if _holds(folder, Path.cwd()):
        raise InputError(f"{named}: replacing it would delete the current folder; choose another output")


def _holds(folder: Path, place: Path) -> bool:
    """Whether `place` is the folder or lies below it, also on file systems that ignore case."""
    return any(at.exists() and at.samefile(folder) for at in (place, *place.parents))


def _is_bundle(folder: Path) -> bool:
    try:
        Manifest.read(folder)
    except BundleError:
        return False
    return True


def _is_whole_bundle(folder: Path) -> bool:
    """Whether a folder is a bundle of which no file is missing, by their sizes."""
    try:
        check_files(folder, dict(Manifest.read(folder).files), digests=False)
    except (BundleError, OSError):
        return False
    return True


def _is_leftover(folder: Path) -> bool:
    """Whether a folder is what an interruption can leave: empty, with a conversion's plan, or a whole bundle."""
    try:
        plan = read_json(folder / PLAN_FILE)
    except (OSError, ValueError):
        return not any(folder.iterdir()) or _is_bundle(folder)
    return isinstance(plan, dict) and {"schema", "source", "tools"} <= plan.keys()
