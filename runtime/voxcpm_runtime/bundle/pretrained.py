"""Opening a checkpoint like a bundle: it is converted once, into the user's cache.

The command `convert` is found by its entry point, as the runtime does not import conversion.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

from voxcpm_constants.errors import InputError, MissingExtraError
from voxcpm_constants.manifest import MANIFEST_FILE
from voxcpm_constants.user_folders import cache_folder, is_hub_id, user_path

DEFAULT_PRECISION = "int8"
_GROUP = "voxcpm_coreml.commands"
_TOOLS = ("coremltools", "torch", "voxcpm-coreml")


@dataclass(frozen=True)
class Pretrained:
    """A checkpoint to open, with upstream's names."""

    model: str
    """Folder of a checkpoint or of a bundle, or a hub id (organisation/name) of a checkpoint."""
    cache_dir: str | None = None
    """Folder for downloads from the hub; None for the hub's own."""
    local_files_only: bool = False
    """Whether to use earlier downloads only, without the network."""
    lora: str | None = None
    """Folder or weight file of a LoRA to merge."""


def pretrained_bundle(asked: Pretrained, precision: str | None = None) -> Path:
    """The folder of a checkpoint's bundle, converted on the first call in one precision (int8 by default).

    The folder of a bundle is returned unchanged. Raises InputError, MissingExtraError, and what the conversion raises.
    """
    from filelock import FileLock  # slow to import, and only needed here

    given = user_path(asked.model)
    if (given / MANIFEST_FILE).is_file():
        if asked.lora is not None:
            raise InputError(
                f"{asked.model}: a LoRA is merged into a checkpoint, and this is a bundle already"
            )
        return given
    if not asked.model or (not given.is_dir() and not is_hub_id(asked.model)):
        raise InputError(
            f"{asked.model}: expected a folder with a checkpoint or a bundle, or a hub id (organisation/name)"
        )
    convert = _convert(asked.model)
    chosen = precision or DEFAULT_PRECISION
    folder = cache_folder("bundles") / _name(asked, chosen)
    if (folder / MANIFEST_FILE).is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not (folder / MANIFEST_FILE).is_file():
            convert(
                checkpoint=asked.model,
                output=folder,
                precision=[chosen],
                lora=None if asked.lora is None else user_path(asked.lora),
                cache_dir=None if asked.cache_dir is None else user_path(asked.cache_dir),
                local_files_only=asked.local_files_only,
            )
    return folder


def _convert(model: str) -> Callable[..., object]:
    """The function of the command `convert`."""
    try:
        for tool in _TOOLS:
            version(tool)
        return next(iter(entry_points(group=_GROUP, name="convert"))).load()  # type: ignore[no-any-return]
    except (ModuleNotFoundError, StopIteration) as error:
        raise MissingExtraError(
            f"{model} is a checkpoint, and converting it needs {getattr(error, 'name', None) or 'voxcpm_conversion'}; "
            'install it with: pip install "voxcpm-coreml[convert]", or give a bundle'
        ) from None


def _name(asked: Pretrained, precision: str) -> str:
    """The name of the bundle in the cache: a digest of everything it is made from, with the tools' versions."""
    parts: list[Any] = [precision, *(version(tool) for tool in _TOOLS)]
    for given in (asked.model, asked.lora):
        path = None if given is None else user_path(given)
        # A hub id is not resolved: the first conversion is kept.
        parts.append(given if path is None or not path.exists() else _identity(path.resolve()))
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    last = "".join(char if char.isalnum() or char in "._-" else "-" for char in Path(asked.model).name)[:60]
    return f"pretrained-{last}-{digest}"


def _identity(path: Path) -> list[Any]:
    """Names, sizes and times of a file, or of the files in a folder."""
    files = sorted(entry for entry in path.iterdir() if entry.is_file()) if path.is_dir() else [path]
    stats = [(file.name, os.stat(file)) for file in files]  # noqa: PTH116 - follows links, as in the hub's cache
    return [str(path), *([name, stat.st_size, stat.st_mtime_ns] for name, stat in stats)]
