"""Files with a checkpoint's weights: safetensors, single or sharded, and PyTorch pickles.

They are read tensor by tensor, by the names in the file; `checkpoint` interprets the names.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from voxcpm_constants.errors import CheckpointError, first_line
from voxcpm_constants.json_files import read_json

Shape = tuple[int, ...]

# Keys under which files of a training run nest the weights; upstream itself unwraps `state_dict` only.
_CONTAINERS = ("state_dict", "model", "module")
_AGAIN = "download it again"


@dataclass(frozen=True)
class WeightFile:
    """Named tensors in one or several files; their shapes are known without reading data."""

    paths: tuple[Path, ...]
    """The files, the index first if there is one."""
    shapes: dict[str, Shape]
    read: Callable[[str], torch.Tensor]
    """read(name): the tensor in its stored dtype. Raises CheckpointError if its data cannot be read."""


def open_weight_file(path: Path) -> WeightFile:
    """Open a weight file; its name decides its format.

    Raises CheckpointError for a damaged file or one without a state dict.
    """
    if path.name.endswith(".safetensors.index.json"):
        return _shards(path)
    return _safetensors(path) if path.suffix == ".safetensors" else _pickle(path)


def _safetensors(path: Path) -> WeightFile:
    # Opened per tensor: an open memory map keeps every page that was read in memory.
    def opened(use: Callable[[Any], Any]) -> Any:
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                return use(file)
        except (SafetensorError, OSError) as error:
            raise _unreadable(path, "a safetensors file", error) from None

    shapes = opened(lambda file: {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118
    return WeightFile((path,), shapes, lambda name: opened(lambda file: file.get_tensor(name)))


def _shards(index: Path) -> WeightFile:
    """`model.safetensors.index.json` and the files in its `weight_map`."""
    try:
        document = read_json(index)
        owner = {str(name): str(file) for name, file in document["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(index, "a safetensors index with a weight_map", error) from None
    shards = {file: _safetensors(_shard_path(index, file)) for file in sorted(set(owner.values()))}
    for name, file in owner.items():
        if name not in shards[file].shapes:
            raise CheckpointError(f"{index}: expected {name} in {file}, but it is not there; {_AGAIN}")
    return WeightFile(
        paths=(index, *(shard.paths[0] for shard in shards.values())),
        shapes={name: shards[file].shapes[name] for name, file in owner.items()},
        read=lambda name: shards[owner[name]].read(name),
    )


def _shard_path(index: Path, file: str) -> Path:
    path = index.parent / file
    # A name with folders could point anywhere. Upstream's and the hub's shards are in the folder of their index.
    if Path(file).name != file or not path.is_file():
        raise CheckpointError(f"{index}: expected the shard {file} next to it, but there is no such file")
    return path


def _pickle(path: Path) -> WeightFile:
    try:
        # weights_only: a pickle can run code, and a downloaded checkpoint must not.
        # Files older than PyTorch 1.6 are not zip archives and cannot be memory-mapped.
        document = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # noqa: BLE001 - a damaged or hostile pickle raises nearly anything
        raise _unreadable(path, "a PyTorch state dict of plain tensors", error) from None
    while isinstance(document, Mapping):
        inner = [document[key] for key in _CONTAINERS if isinstance(document.get(key), Mapping)]
        if not inner:
            break
        document = inner[0]
    if not isinstance(document, Mapping) or not document:
        raise CheckpointError(f"{path}: expected a PyTorch state dict, found {_kind(document)}")
    for name, value in document.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise CheckpointError(
                f"{path}: expected a PyTorch state dict, but {name!r} is {_kind(value)}, not a tensor"
            )
    tensors: dict[str, torch.Tensor] = dict(document)
    return WeightFile((path,), {name: tuple(t.shape) for name, t in tensors.items()}, tensors.__getitem__)


def _kind(value: object) -> str:
    return f"an empty {type(value).__name__}" if value in ({}, [], ()) else f"a {type(value).__name__}"


def _unreadable(path: Path, expected: str, error: Exception) -> CheckpointError:
    reason = first_line(error).strip().rstrip(".:")
    return CheckpointError(f"{path}: expected {expected}, but it cannot be read ({reason}); {_AGAIN}")
