"""Checkpoints converted on first use, into the user's cache.

The command `convert` is looked up by its entry point, as the runtime does not import conversion.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

from voxcpm_constants.errors import InputError, MissingExtraError, install_command
from voxcpm_constants.manifest import MANIFEST_FILE
from voxcpm_constants.user_folders import cache_folder, is_hub_id, user_path
from voxcpm_runtime.argument_types import wrong_type

DEFAULT_PRECISION = "int8"
_GROUP = "voxcpm_coreml.commands"
_TOOLS = ("coremltools", "torch", "voxcpm-coreml")


def check_device(device: str | None) -> None:
    """Raises InputError for a device of upstream's that does not exist here: Core ML has compute units instead."""
    if device not in (None, "auto", "cpu"):
        raise wrong_type(device, "device", "auto or cpu; on a Mac, compute units choose the GPU")


def pretrained_bundle(
    model: str, precision: str | None = None, lora: str | None = None, cache_dir: str | None = None,
    *, local_files_only: bool = False,
) -> Path:  # fmt: skip
    """The folder of a checkpoint's bundle, converted on the first call in one precision (int8 by default).

    model: folder of a checkpoint, a hub id, or folder of a bundle, which is returned unchanged. lora: folder or weight
    file of a LoRA to merge. cache_dir: folder for downloads. local_files_only: do not use the network. Raises
    InputError, MissingExtraError, and the errors of the conversion.
    """
    from filelock import FileLock  # slow to import, and only needed here

    given = user_path(model)
    if (given / MANIFEST_FILE).is_file():
        if lora is not None:
            raise InputError(f"{model}: a LoRA can be merged into a checkpoint only, and this is a bundle")
        return given
    if not model or (not given.is_dir() and not is_hub_id(model)):
        raise InputError(
            f"{model}: expected a folder with a checkpoint or a bundle, or a hub id (organisation/name)"
        )
    convert = _convert_command(model)
    chosen = precision or DEFAULT_PRECISION
    folder = cache_folder("bundles") / _cache_name(model, lora, chosen)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not (folder / MANIFEST_FILE).is_file():
            convert(
                checkpoint=model,
                output=folder,
                precision=[chosen],
                lora=None if lora is None else user_path(lora),
                cache_dir=None if cache_dir is None else user_path(cache_dir),
                local_files_only=local_files_only,
            )
    return folder


def _convert_command(model: str) -> Callable[..., object]:
    """The function of the command `convert`."""
    try:
        for tool in _TOOLS:
            version(tool)
        return next(iter(entry_points(group=_GROUP, name="convert"))).load()  # type: ignore[no-any-return]
    except (ModuleNotFoundError, StopIteration) as error:
        raise MissingExtraError(
            f"{model} is a checkpoint, and converting it needs {getattr(error, 'name', None) or 'voxcpm_conversion'}; "
            f"give a bundle, or install it with: {install_command('convert')}"
        ) from None


def _cache_name(model: str, lora: str | None, precision: str) -> str:
    """The bundle's name in the cache, with a digest of its inputs and the versions of the tools."""
    parts: list[Any] = [precision, *(version(tool) for tool in _TOOLS)]
    for given in (model, lora):
        path = None if given is None else user_path(given)
        # A hub id is not resolved to a revision: the first conversion stays valid.
        parts.append(given if path is None or not path.exists() else _fingerprint(path.resolve()))
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    last = "".join(char if char.isalnum() or char in "._-" else "-" for char in Path(model).name)[:60]
    return f"pretrained-{last}-{digest}"


def _fingerprint(path: Path) -> list[Any]:
    """Names, sizes and times of a file, or of the files in a folder."""
    files = sorted(entry for entry in path.iterdir() if entry.is_file()) if path.is_dir() else [path]
    stats = [(file.name, os.stat(file)) for file in files]  # noqa: PTH116 - follows links, as in the hub's cache
    return [str(path), *([name, stat.st_size, stat.st_mtime_ns] for name, stat in stats)]
