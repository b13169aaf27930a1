"""The command `voxcpm-coreml clear-cache`."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from voxcpm_constants.json_files import printed_json
from voxcpm_constants.user_folders import cache_folder
from voxcpm_runtime.commands.shared_arguments import Json

# Folder in the user's cache -> patterns of the files that this project writes there, including hidden temp files. Lock
# files stay: while one process holds a lock, others could create and lock a new file of the same name.
_ENTRIES = {
    "compiled": ("*.mlmodelc", "*.aimodelx", "*.ort", "*.kernels", "*.loaded", "*.hung"),
    "lowered": ("*.lowered", "*.lowered.*.part"),
    "verified": ("*.json", "*.json.*.part"),
    "measured": ("*.json", "*.json.*.part"),
}
_BUNDLES = {"bundles": ("pretrained-*", ".pretrained-*")}


def clear_cache(
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also delete bundles converted into the cache.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete cached step models, verification records and doctor's results, but no voices."""
    removed: dict[str, int] = {}
    for kind, patterns in (_ENTRIES | (_BUNDLES if everything else {})).items():
        folder, freed = cache_folder(kind), 0
        found = {entry for pattern in patterns for entry in folder.glob(pattern) if entry.suffix != ".lock"}
        for entry in sorted(found):
            is_folder = entry.is_dir() and not entry.is_symlink()
            files = entry.rglob("*") if is_folder else [entry]
            freed += sum(file.lstat().st_size for file in files if not file.is_dir())
            shutil.rmtree(entry) if is_folder else entry.unlink()
        removed[str(folder)] = freed
        if not as_json:
            typer.echo(f"{folder}: {freed / 1e6:.1f} MB removed")
    if as_json:
        typer.echo(printed_json(removed))
