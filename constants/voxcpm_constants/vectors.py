"""Test vectors: for each step model, calls with their inputs, outputs and final state.

    vectors/<step model>.safetensors

A *stream* is one call, or several with a shared state. Each step model has these:

| stream | calls | length | initial state |
|---|---|---|---|
| `chain` | 12 | the shortest | zeros |
| `first_L` for every longer length L | 1 | L | zeros |
| `last_L` for every length L, of models with KV caches | 1 | L | the rows of `chain`, repeated to the end |

`chain` and `first_L` begin at cache position 0, and `last_L` ends at the cache's last position. A tensor's name is
`<stream>/<kind>/<name of the declaration>`, where kind is `in`, `out` or `state`. Inputs and outputs have the call as
first axis. `state` is the final state: whole contexts, and the rows of each KV cache that were written,
(layers, kv_heads, rows, head_dim). Floats are float16, or float32 where float16 overflows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from voxcpm_constants.errors import BundleError, first_line
from voxcpm_constants.manifest import VECTORS_FOLDER
from voxcpm_constants.step_models import StepModel, StepSizes, TensorSpec
from voxcpm_constants.tensor_files import tensor_file

CHAIN = "chain"
CHAIN_CALLS = 12
VECTORS_FORMAT = "1"

Array = npt.NDArray[Any]
Vectors = Mapping[str, Array]  # The tensors of one step model by name: floats as float32, positions as int32


class VectorStream(NamedTuple):
    """Calls of a step model with a shared state."""

    name: str
    declared: StepModel  # The step model at the stream's length
    length: int  # Length of the enumerated axis
    calls: int
    start: int = 0  # Cache position of the first embedding
    filled: bool = False  # Whether the KV caches start with the rows of `chain`, repeated, instead of zeros

    def key(self, kind: str, name: str) -> str:
        """Name of a tensor in the file; kind: "in", "out" or "state"."""
        return f"{self.name}/{kind}/{name}"

    @property
    def rows(self) -> slice:
        """The cache positions that the stream writes."""
        return slice(self.start, self.start + self.calls * self.length)


def vectors_path(step_model: str) -> PurePosixPath:
    """Path of a step model's test vectors, relative to the bundle."""
    return PurePosixPath(VECTORS_FOLDER) / f"{step_model}.safetensors"


def streams(model: StepModel, sizes: StepSizes) -> tuple[VectorStream, ...]:
    """The streams of a step model's test vectors, `chain` first."""
    first, *longer = sorted(range(model.chunk_count), key=lambda chunk: model.chunk_lengths[chunk])
    cached, length = any(map(is_cache, model.state)), model.chunk_lengths[first]
    calls = min(CHAIN_CALLS, sizes.kv_length // length) if cached else CHAIN_CALLS
    found = [VectorStream(CHAIN, model.at(first), length, calls)]
    for chunk in longer:
        length = model.chunk_lengths[chunk]
        found.append(VectorStream(f"first_{length}", model.at(chunk), length, 1))
    for chunk in (first, *longer) if cached else ():
        length = model.chunk_lengths[chunk]
        start = sizes.kv_length - length
        found.append(VectorStream(f"last_{length}", model.at(chunk), length, 1, start, filled=True))
    return tuple(found)


def is_cache(tensor: TensorSpec) -> bool:
    """Whether a state tensor is a KV cache (layers, kv_heads, positions, head_dim), and not a context."""
    return len(tensor.shape) == 4


def filled_caches(final_rows: Mapping[str, Array], sizes: StepSizes) -> dict[str, Array]:
    """The initial KV caches of a `filled` stream, by name: the final rows of `chain`, repeated."""
    return {name: rows[:, :, np.arange(sizes.kv_length) % rows.shape[2]] for name, rows in final_rows.items()}


def stored_state(stream: VectorStream, state: Mapping[str, Array]) -> dict[str, Array]:
    """The final state of a stream, as stored: whole contexts, and the cache rows that it wrote."""
    return {
        t.name: state[t.name][:, :, stream.rows] if is_cache(t) else state[t.name]
        for t in stream.declared.state
    }


def write_vectors(path: Path, step_model: str, arrays: Vectors) -> None:
    """Write a step model's test vectors. Floats become float16 unless they overflow."""
    stored = {name: _to_float16(array) for name, array in arrays.items()}
    path.write_bytes(tensor_file(stored, {"format": VECTORS_FORMAT, "step_model": step_model}))


def read_vectors(bundle: Path, model: StepModel, sizes: StepSizes) -> Vectors:
    """The test vectors of a step model. Raises BundleError if they cannot be read or have wrong shapes."""
    path = bundle / vectors_path(model.name)
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BundleError(
            f"{path}: expected test vectors, but they cannot be read ({first_line(error)}); convert again"
        ) from None
    for name, shape in _shapes(model, sizes):
        if name not in stored or stored[name].shape != shape:
            found = stored[name].shape if name in stored else "none"
            raise BundleError(f"{path}: expected {name} of shape {shape}, found {found}; convert again")
    return {n: a if a.dtype == np.int32 else a.astype(np.float32) for n, a in stored.items()}


def _shapes(model: StepModel, sizes: StepSizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    for stream in streams(model, sizes):
        for kind, tensors in (("in", stream.declared.inputs), ("out", stream.declared.outputs)):
            yield from ((stream.key(kind, t.name), (stream.calls, *t.shape_at(0))) for t in tensors)
        for tensor in stream.declared.state:
            shape = tensor.shape_at(0)
            if is_cache(tensor):
                shape = (*shape[:2], stream.rows.stop - stream.rows.start, shape[3])
            yield stream.key("state", tensor.name), shape


def _to_float16(array: Array) -> Array:
    if array.dtype == np.int32:
        return array
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    return half if np.isfinite(half).all() else array.astype(np.float32)
