"""Files with a checkpoint's weights: safetensors, single or sharded, and PyTorch pickles.

They are read tensor by tensor, by the names in the file; `checkpoint` interprets the names.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
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
# Prefixes of wrappers (DistributedDataParallel, PEFT, classes around the model); no VoxCPM weight begins with them.
_WRAPPER_PREFIXES = ("module.", "model.", "tts_model.", "base_model.")
_COMPILED = "_orig_mod."  # torch.compile puts it before the name of any module
_STAND_INS = {
    b"version https://git-lfs": "a Git LFS pointer, not the weights themselves; run git lfs pull in its folder",
    b"<": f"a web page, not weights; {_AGAIN}, from the link for the file itself",
}
_FOREIGN_CLASS = re.compile(r"GLOBAL (\S+)")  # In torch's message about a pickle that it does not load


@dataclass(frozen=True)
class WeightFile:
    """Named tensors in one or several files; their shapes are known without reading data."""

    paths: tuple[Path, ...]
    """The files, the index first if there is one."""
    shapes: dict[str, Shape]
    read: Callable[[str], torch.Tensor]
    """read(name): the tensor in its stored dtype. Raises CheckpointError if its data cannot be read."""
    integers: frozenset[str] = frozenset()
    """Names of the tensors of integers: quantised weights, or buffers."""


def downloaded(repository: str, names: Iterable[str], what: str, **options: Any) -> Path:
    """The folder of the hub's cache with these files of a repository; those already there are not downloaded again.

    what: what the repository should be. options: of `snapshot_download`. Raises CheckpointError.
    """
    # Slow to import, and needed for hub ids only.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=list(names), **options))
    except Exception as error:  # noqa: BLE001 - no network, repository, revision, access or disk
        at = f" at {options['revision']}" if options.get("revision") else ""
        raise CheckpointError(
            f"{repository}{at}: no such {what}, and the download failed ({first_line(error)})"
        ) from None


def plain_name(key: str) -> str:
    """A stored name without what wrappers added to it."""
    name = key.replace(_COMPILED, "")
    while prefix := next((prefix for prefix in _WRAPPER_PREFIXES if name.startswith(prefix)), None):
        name = name.removeprefix(prefix)
    return name


def stored_keys(file: WeightFile, name_of: Callable[[str], str] = plain_name) -> dict[str, str]:
    """The key in the file of each tensor, by its name. Raises CheckpointError for a name that appears twice."""
    keys: dict[str, str] = {}
    for key in file.shapes:
        if keys.setdefault(name := name_of(key), key) != key:
            raise CheckpointError(f"{file.paths[0]}: {name} appears twice, under different names")
    return keys


def open_weight_file(path: Path) -> WeightFile:
    """Open a weight file; its name decides its format.

    Raises CheckpointError for a damaged file, one without a state dict, and what was saved in place of one.
    """
    with path.open("rb") as file:
        start = file.read(64).lstrip().lower()
    if found := next((what for mark, what in _STAND_INS.items() if start.startswith(mark)), None):
        raise CheckpointError(f"{path}: this is {found}")
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

    slices = opened(lambda file: {name: file.get_slice(name) for name in file.keys()})  # noqa: SIM118
    shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
    integers = frozenset(name for name, part in slices.items() if part.get_dtype()[0] in "IU")
    return WeightFile((path,), shapes, lambda name: opened(lambda file: file.get_tensor(name)), integers)


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
        integers=frozenset(name for name, file in owner.items() if name in shards[file].integers),
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
    except pickle.UnpicklingError as error:
        # torch's own message advises to load it anyway.
        found = _FOREIGN_CLASS.search(str(error))
        what = f"objects such as {found[1]}" if found else "something else, or it is damaged"
        raise CheckpointError(
            f"{path}: expected a PyTorch state dict of plain tensors, but it contains {what}; a pickle can run "
            "code, so only tensors are read: save the state dict alone, best as safetensors"
        ) from None
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
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    integers = frozenset(name for name, t in tensors.items() if not t.is_floating_point())
    return WeightFile((path,), shapes, tensors.__getitem__, integers)


def _kind(value: object) -> str:
    return f"an empty {type(value).__name__}" if value in ({}, [], ()) else f"a {type(value).__name__}"


def _unreadable(path: Path, expected: str, error: Exception) -> CheckpointError:
    reason = first_line(error).strip().rstrip(".:")
    return CheckpointError(f"{path}: expected {expected}, but it cannot be read ({reason}); {_AGAIN}")
