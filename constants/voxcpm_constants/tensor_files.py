"""Reproducible safetensors files: safetensors itself writes metadata in any order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from voxcpm_constants.json_files import parsed_json

_LENGTH_BYTES = 8
_ALIGNMENT = 8
"""Tensors start at a multiple of this many bytes; the header is padded with spaces."""


def tensor_file(tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """The content of a safetensors file with these tensors and this metadata."""
    # save() ignores the strides of an array.
    content = save({name: np.ascontiguousarray(array) for name, array in tensors.items()}, dict(metadata))
    header, start = header_of(content)
    ordered = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    ordered += b" " * (-len(ordered) % _ALIGNMENT)
    return len(ordered).to_bytes(_LENGTH_BYTES, "little") + ordered + content[start:]


def header_of(content: bytes) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file that can be read, and the byte where its tensors start."""
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    return parsed_json(content[_LENGTH_BYTES:start]), start
