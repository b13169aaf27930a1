"""The command `voxcpm-coreml clear-cache`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from voxcpm_constants.errors import InputError, os_reason
from voxcpm_constants.user_folders import cache_folder

# Folder in the user's cache -> names that this project writes there; other files are not its own. Lock files stay:
# if another process holds one, a third process would create and lock a new file of that name.
_ENTRIES = {
    "compiled": tuple(f"{dot}*{form}" for form in (".mlmodelc", ".aimodelx", ".ort") for dot in ("", ".")),
    "lowered": ("*.lowered", ".*.lowered.*.part"),
    "verified": ("*.json", ".*.json.*.part"),
    "measured": ("*.json", ".*.json.*.part"),
}
_VOICE_ENTRIES = {
    "bundles": tuple(f"{dot}{kind}-*" for kind in ("default", "pretrained") for dot in ("", "."))
}
_LOCK = ".lock"


def clear_cache(
    *,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Also remove the bundles of checkpoints, which are converted again when used.",
        ),
    ] = False,
) -> None:
    """Remove compiled and lowered step models, records of verified files, and the choices of doctor. Voices stay."""
    failures = []
    for kind, patterns in (_ENTRIES | (_VOICE_ENTRIES if everything else {})).items():
        folder = cache_folder(kind)
        entries = sorted(
            {entry for pattern in patterns for entry in folder.glob(pattern) if entry.suffix != _LOCK}
        )
        freed = 0
        for entry in entries:
            size = _bytes(entry)
            try:
                _remove(entry)
            except OSError as error:
                failures.append(f"{entry} ({os_reason(error)})")
            else:
                freed += size
        typer.echo(f"{folder}: {freed / 1e6:.1f} MB removed")
    if failures:
        others = f" and {len(failures) - 1} more" if failures[1:] else ""
        raise InputError(
            f"cannot remove {failures[0]}{others}; change the permissions, or remove it yourself"
        )


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def _bytes(entry: Path) -> int:
    files = entry.rglob("*") if entry.is_dir() and not entry.is_symlink() else (entry,)
    return sum(file.lstat().st_size for file in files if not file.is_dir())
