"""Files with a checkpoint's weights: safetensors, single or sharded, and PyTorch pickles.

They are read tensor by tensor, by the names in the file; `checkpoint` interprets the names.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from voxcpm_constants.errors import CheckpointError
from voxcpm_constants.json_files import read_json

Shape = tuple[int, ...]

# Keys under which files of a training run nest the weights; upstream itself unwraps `state_dict` only.
_CONTAINERS = ("state_dict", "model", "module")
_AGAIN = "download it again"


class WeightFile(Protocol):
    """Named tensors in one or several files; their shapes are known without reading data."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, the index first if there is one."""
        ...

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shape of each tensor, by name."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """The tensor in its stored dtype. Raises CheckpointError if its data cannot be read."""
        ...


def open_weight_file(path: Path) -> WeightFile:
    """Open a weight file; its name decides its format.

    Raises CheckpointError for a damaged file or one without a state dict.
    """
    if path.name.endswith(".safetensors.index.json"):
        return _Shards(path)
    return _Safetensors(path) if path.suffix == ".safetensors" else _Pickle(path)


class _Safetensors:
    def __init__(self, path: Path) -> None:
        self.paths: tuple[Path, ...] = (path,)
        self.shapes: dict[str, Shape] = {}
        try:
            with _safetensors(path) as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    self.shapes[name] = tuple(file.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise _unreadable(path, "a safetensors file", error) from None

    def read(self, name: str) -> torch.Tensor:
        try:
            # Opened for each tensor: a memory map that stays open holds every page that was read in memory.
            with _safetensors(self.paths[0]) as file:
                tensor: torch.Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise _unreadable(self.paths[0], "a safetensors file", error) from None
        return tensor


def _safetensors(path: Path) -> Any:
    return safe_open(path, framework="pt", device="cpu")


class _Shards:
    """`model.safetensors.index.json` and the files in its `weight_map`."""

    def __init__(self, index: Path) -> None:
        try:
            document = read_json(index)
            owner = {str(name): str(file) for name, file in document["weight_map"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _unreadable(index, "a safetensors index with a weight_map", error) from None
        self._shards = {file: _Safetensors(_shard_path(index, file)) for file in sorted(set(owner.values()))}
        self.paths: tuple[Path, ...] = (index, *(index.parent / file for file in self._shards))
        self._owner = owner
        self.shapes: dict[str, Shape] = {}
        for name, file in owner.items():
            if name not in self._shards[file].shapes:
                raise CheckpointError(f"{index}: expected {name} in {file}, but it is not there; {_AGAIN}")
            self.shapes[name] = self._shards[file].shapes[name]

    def read(self, name: str) -> torch.Tensor:
        return self._shards[self._owner[name]].read(name)


def _shard_path(index: Path, file: str) -> Path:
    path = index.parent / file
    # A name with folders could point anywhere. Upstream's and the hub's shards are in the folder of their index.
    if Path(file).name != file or not path.is_file():
        raise CheckpointError(f"{index}: expected the shard {file} next to it, but there is no such file")
    return path


class _Pickle:
    def __init__(self, path: Path) -> None:
        self.paths: tuple[Path, ...] = (path,)
        try:
            # weights_only: a pickle can run code, and a downloaded checkpoint must not.
            # Files older than PyTorch 1.6 are not zip archives and cannot be memory-mapped.
            document = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except Exception as error:  # noqa: BLE001 - a damaged or hostile pickle raises nearly anything
            raise _unreadable(path, "a PyTorch state dict of plain tensors", error) from None
        self._tensors = _state_dict(path, document)
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def _state_dict(path: Path, document: object) -> dict[str, torch.Tensor]:
    """The state dict inside any containers. Raises CheckpointError if there is none."""
    while isinstance(document, Mapping):
        inner = next((document[key] for key in _CONTAINERS if isinstance(document.get(key), Mapping)), None)
        if inner is None:
            break
        document = inner
    if not isinstance(document, Mapping) or not document:
        raise CheckpointError(f"{path}: expected a PyTorch state dict, found {_describe(document)}")
    for name, value in document.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise CheckpointError(
                f"{path}: expected a PyTorch state dict, but {name!r} is {_describe(value)}, not a tensor"
            )
    return dict(document)


def _describe(value: object) -> str:
    return f"an empty {type(value).__name__}" if value in ({}, [], ()) else f"a {type(value).__name__}"


def _unreadable(path: Path, expected: str, error: Exception) -> CheckpointError:
    """An error with the first line of the library's message, which may have many."""
    lines = str(error).strip().splitlines()
    reason = lines[0].strip().rstrip(".:") if lines else type(error).__name__
    return CheckpointError(f"{path}: expected {expected}, but it cannot be read ({reason}); {_AGAIN}")
