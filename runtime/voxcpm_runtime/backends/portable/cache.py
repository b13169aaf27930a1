"""A cache of lowered graphs, so that later starts need neither onnx nor the lowering.

An entry is a tensor file (`voxcpm_constants.tensor_files`) of a few hundred kilobytes, without the large weights, in
the user's cache folder. A damaged entry is rebuilt.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from voxcpm_constants.json_files import parsed_json
from voxcpm_constants.manifest import record_folder
from voxcpm_constants.targets import MAIN
from voxcpm_constants.tensor_files import dump_tensors, load_tensors
from voxcpm_constants.user_folders import cache_folder
from voxcpm_runtime.backends.portable.kernels import available_operators
from voxcpm_runtime.backends.portable.lowered import Lowered, Mode
from voxcpm_runtime.backends.portable.package import map_weights
from voxcpm_runtime.backends.portable.sessions import has_exact_signed_products
from voxcpm_runtime.storage.atomic_file import atomic_file

# Part of every key: increment when the same package lowers to another graph.
LOWERING_VERSION = 14

# Minimum bytes of weights for custom operators.
_MIN_KERNEL_BYTES = 32 << 20

_GRAPH, _FIELDS = "graph", "fields"  # The ONNX graph as a tensor of bytes, and the rest as JSON
# Step models are loaded on several threads. Lowering holds the GIL, so two at a time would only take more memory.
_LOWER_LOCK = threading.Lock()


def load_lowered(
    package: Path,
    *,
    cache_key: str | None = None,
    function: str = MAIN,
    mode: Mode = "plain",
    probe: bool = False,
) -> Lowered:
    """The lowered function of a package, cached.

    cache_key: identifies the package's content, such as a digest from a manifest; by default the content is hashed. A
    cache that cannot be written is ignored. Errors: see `lowering.lower`.
    """
    content = cache_key or record_folder(package)
    signed = mode == "plain" and has_exact_signed_products()
    weights_size = map_weights(package).size
    # Small models are fast enough, and open without waiting for a compiler.
    large = mode == "plain" and not probe and weights_size >= _MIN_KERNEL_BYTES
    kernels = available_operators() if large else frozenset()
    arithmetic = "-".join([mode, *(["signed"] if signed else []), *sorted(kernels)])
    key = f"{LOWERING_VERSION}|{function}|{arithmetic}|{probe}|{content}"
    entry = cache_folder("lowered") / f"{hashlib.sha256(key.encode()).hexdigest()}.lowered"
    lowered = read_entry(entry)
    if lowered is not None and lowered.weight_file_size == weights_size:
        return lowered
    with _LOWER_LOCK:
        from voxcpm_runtime.backends.portable.lowering import lower  # imports onnx; only on a cache miss

        lowered = lower(package, function, mode, probe, signed, kernels)
    with contextlib.suppress(OSError):
        write_entry(entry, lowered)
    return lowered


def read_entry(path: Path) -> Lowered | None:
    """The entry in a file; None if it is missing, damaged or of another format."""
    try:
        tensors, metadata = load_tensors(path.read_bytes())
        return _form().validate_python({**parsed_json(metadata[_FIELDS]), "model": tensors[_GRAPH].tobytes()})
    except (OSError, ValueError, KeyError):
        return None


@functools.cache
def _form() -> TypeAdapter[Lowered]:
    return TypeAdapter(Lowered)


def write_entry(path: Path, lowered: Lowered) -> None:
    """Write an entry atomically. Raises OSError."""
    fields = {name: value for name, value in vars(lowered).items() if name != "model"}
    graph = np.frombuffer(lowered.model, np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(dump_tensors({_GRAPH: graph}, {_FIELDS: json.dumps(fields, default=asdict)}))
