"""Tensor files: reproducible safetensors, also with a checksum, and the weight file of a Core ML package."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from voxcpm_constants.errors import first_line
from voxcpm_constants.json_files import parsed_json

_LENGTH_BYTES = 8
_DIGEST_KEY = "sha256"
Tensors = Mapping[str, npt.NDArray[np.generic]]


def tensor_file(tensors: Tensors, metadata: Mapping[str, str]) -> bytes:
    """The content of a safetensors file with these tensors and this metadata."""
    # save() ignores the strides of an array.
    content = save({name: np.ascontiguousarray(array) for name, array in tensors.items()}, dict(metadata))
    header, start = header_of(content)
    ordered = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    # Tensors start at a multiple of 8 bytes.
    ordered += b" " * (-len(ordered) % 8)
    return len(ordered).to_bytes(_LENGTH_BYTES, "little") + ordered + content[start:]


def header_of(content: bytes) -> tuple[dict[str, Any], int]:
    """The header of a valid safetensors file, and the offset of its tensors in bytes."""
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    return parsed_json(content[_LENGTH_BYTES:start]), start


def dump_tensors(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file of the tensors and metadata, with a digest of both."""
    own = dict(metadata or {})
    return tensor_file(tensors, {**own, _DIGEST_KEY: _digest(tensors, own)})


def load_tensors(content: bytes) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """The tensors and metadata of a safetensors file.

    Raises ValueError if it cannot be parsed, or if its digest is missing or differs.
    """
    try:
        tensors = load(content)
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(first_line(error)) from None
    # `load` has validated the header, but does not return the metadata.
    metadata = dict(header_of(content)[0].get("__metadata__") or {})
    digest = metadata.pop(_DIGEST_KEY, None)
    if digest is None:
        raise ValueError("its digest is missing")
    if digest != _digest(tensors, metadata):
        raise ValueError("its content differs from its digest")
    return tensors, metadata


def _digest(tensors: Tensors, metadata: Mapping[str, str]) -> str:
    whole = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, array in sorted(tensors.items()):
        whole.update(f"|{name}|{array.dtype.str}|{array.shape}|".encode())
        whole.update(array.tobytes())
    return whole.hexdigest()


WEIGHT_FILE = Path("Data/com.apple.CoreML/weights/weight.bin")
"""The weights of a Core ML package; one with only small weights has none.

A header, and for each weight a record and its data, each aligned.
"""
_HEADER = struct.Struct("<II")  # The number of weights, and a version
BLOB_RECORD = struct.Struct("<IIQQ")
"""Sentinel, element type, size in bytes, offset of the data from the start of the file."""
BLOB_SENTINEL = 0xDEADBEEF
_ALIGNMENT = 64


def is_complete(path: Path) -> bool:
    """Whether a weight.bin is complete, with as many weights as its header says.

    coremltools updates the header with each weight, and does not check that the last write succeeds. Raises OSError.
    """
    end = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        found, place = 0, _ALIGNMENT
        while place < end:
            file.seek(place)
            record = file.read(BLOB_RECORD.size)
            if len(record) < BLOB_RECORD.size:
                return False
            sentinel, _, size, offset = BLOB_RECORD.unpack(record)
            if sentinel != BLOB_SENTINEL or offset < place or offset + size > end:
                return False
            found, place = found + 1, -(-(offset + size) // _ALIGNMENT) * _ALIGNMENT
    return len(header) == _HEADER.size and _HEADER.unpack(header)[0] == found
