"""safetensors files with a checksum of tensors and metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load

from voxcpm_constants.errors import first_line
from voxcpm_constants.tensor_files import header_of, tensor_file

_DIGEST_KEY = "sha256"

Tensors = Mapping[str, npt.NDArray[np.generic]]


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
