"""Files of tensors: safetensors, written reproducibly, and the weights of a Core ML package."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from voxcpm_constants.json_files import parsed_json

_LENGTH_BYTES = 8


def tensor_file(tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """The content of a safetensors file with these tensors and this metadata."""
    # save() ignores the strides of an array.
    content = save({name: np.ascontiguousarray(array) for name, array in tensors.items()}, dict(metadata))
    header, start = header_of(content)
    ordered = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    # Tensors start at a multiple of 8 bytes.
    ordered += b" " * (-len(ordered) % 8)
    return len(ordered).to_bytes(_LENGTH_BYTES, "little") + ordered + content[start:]


def header_of(content: bytes) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file that can be read, and the byte where its tensors start."""
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    return parsed_json(content[_LENGTH_BYTES:start]), start


WEIGHT_FILE = Path("Data/com.apple.CoreML/weights/weight.bin")
"""The weights of a Core ML package; one with only small weights has none.

A header, and for each weight a record and its data, each aligned.
"""
_HEADER = struct.Struct("<II")  # The number of weights, and a version
BLOB_RECORD = struct.Struct("<IIQQ")
"""Sentinel, element type, size in bytes, offset of the data from the start of the file."""
BLOB_SENTINEL = 0xDEADBEEF
_ALIGNMENT = 64


def is_whole(path: Path) -> bool:
    """Whether a weight.bin has as many weights as its header says, and ends with the data of the last one.

    coremltools updates the header with each weight, and does not notice if the last write fails. Raises OSError for a
    file that cannot be read.
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
