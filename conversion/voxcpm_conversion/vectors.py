"""Test vectors of a step model, computed by its torch module in float32 (format: `voxcpm_constants.vectors`).

The inputs are seeded noise at the scale of real speech, measured on the built-in voice, and the checkpoint's own text
embeddings. All are rounded to float16 first, so that the file has exactly what went in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.arrays import EMBED_TOKENS
from voxcpm_constants.manifest import CONSTANTS_FOLDER
from voxcpm_constants.step_models import BASE_LM_STEP, StepModel, StepSizes, TensorSpec
from voxcpm_constants.vectors import (
    Array,
    VectorStream,
    filled_caches,
    stored_state,
    streams,
    vectors_path,
    write_vectors,
)
from voxcpm_conversion.modules.voxcpm import VoxCPMModules
from voxcpm_conversion.step_modules import build_step
from voxcpm_conversion.workspace import Workspace

_SPEECH = 0.05
"""Root mean square of speech in [-1, 1]. Latents, hidden states and conditions are near 1."""

_Tokens = Callable[[np.random.Generator, tuple[int, ...]], Array]
"""Text embeddings of a shape (…, hidden)."""
_Source = Callable[[Callable[[], Array], tuple[int, ...], float], Array]
_SOURCES: dict[str, _Source] = {
    "audio": lambda noise, shape, time: noise() * _SPEECH,
    # Zero in the odd rows, which are unconditional.
    "mu": lambda noise, shape, time: noise() * (np.arange(shape[0]) % 2 == 0)[:, np.newaxis],
    "t_embedding": lambda noise, shape, time: time_embedding(shape, time),
    "dt_embedding": lambda noise, shape, time: time_embedding(shape, 0.0),
    # These three are inputs of `locdit_solve`: even steps from time 1 to 0.
    "t_embeddings": lambda noise, shape, time: np.concatenate(
        [time_embedding((1, shape[1]), 1 - step / shape[0]) for step in range(shape[0])]
    ),
    "step_lengths": lambda noise, shape, time: np.full(shape, 1 / shape[0]),
    "cfg_value": lambda noise, shape, time: np.full(shape, 2.0),
}
"""Input name -> its values, given standard normal numbers, its shape and the DiT's time from 1 (noise) to 0 (data).

Any other input is noise.
"""


def add_vectors(
    workspace: Workspace, a: Architecture, declared: StepModel, sizes: StepSizes, modules: VoxCPMModules
) -> None:
    """Add a step model's test vectors to the workspace, which has the constants. modules: with its weights."""
    step = build_step(declared, modules, a, sizes)
    tokens = partial(_token_embeddings, workspace.folder / CONSTANTS_FOLDER, a)
    arrays = compute_vectors(step, declared, sizes, tokens)
    workspace.add(str(vectors_path(declared.name)), lambda path: write_vectors(path, declared.name, arrays))


def compute_vectors(
    step: nn.Module, declared: StepModel, sizes: StepSizes, tokens: _Tokens
) -> dict[str, Array]:
    """The tensors of a step model's test vectors by name."""
    generator = np.random.default_rng(list(declared.name.encode()))
    arrays: dict[str, Array] = {}
    left: dict[str, Array] = {}
    for stream in streams(declared, sizes):
        state = _state_before(stream, left, sizes)
        calls = []
        for call in range(stream.calls):
            inputs = _inputs(stream, call, generator, tokens)
            outputs, state = call_step(step, declared, inputs, state)
            outputs = {t.name: outputs[t.name] for t in stream.declared.outputs}
            calls.append(
                {("in", n): x for n, x in inputs.items()} | {("out", n): x for n, x in outputs.items()}
            )
        arrays |= {stream.key(*name): np.stack([call[name] for call in calls]) for name in calls[0]}
        after = stored_state(stream, state)
        left = left or after
        arrays |= {stream.key("state", name): array for name, array in after.items()}
    return arrays


def _state_before(stream: VectorStream, left: dict[str, Array], sizes: StepSizes) -> dict[str, Array]:
    """The state before a stream's first call. left: the state after `chain`."""
    if stream.filled:
        return filled_caches({name: _stored(rows) for name, rows in left.items()}, sizes)
    return {t.name: np.zeros(t.shape_at(0), np.float32) for t in stream.declared.state}


def _inputs(
    stream: VectorStream, call: int, generator: np.random.Generator, tokens: _Tokens
) -> dict[str, Array]:
    time = 1 - call / stream.calls

    def values(tensor: TensorSpec) -> Array:
        shape = tensor.shape_at(0)
        if tensor.dtype == "int32":
            return np.full(shape, stream.start + call * stream.length, np.int32)
        if stream.declared.name == BASE_LM_STEP:
            return _stored(tokens(generator, shape))

        def noise() -> Array:
            return generator.standard_normal(shape, np.float32)

        source = _SOURCES.get(tensor.name)
        return _stored(source(noise, shape, time) if source else noise())

    return {tensor.name: values(tensor) for tensor in stream.declared.inputs}


def call_step(
    step: nn.Module, declared: StepModel, inputs: dict[str, Array], state: dict[str, Array]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Outputs and updated state of one call of a step module, which may write to the arrays of `state`."""
    arguments = [*(inputs[t.name] for t in declared.inputs), *(state[t.name] for t in declared.state)]
    with torch.inference_mode():
        found: Any = step(*(torch.as_tensor(array) for array in arguments))
    results = [found] if isinstance(found, Tensor) else list(found)
    arrays = [tensor.numpy() for tensor in results]
    outputs = dict(zip((t.name for t in declared.outputs), arrays, strict=False))
    return outputs, dict(zip((t.name for t in declared.state), arrays[len(outputs) :], strict=True))


def _token_embeddings(
    constants: Path, a: Architecture, generator: np.random.Generator, shape: tuple[int, ...]
) -> Array:
    """Embeddings (…, hidden) of random tokens, from the bundle's memory-mapped table."""
    table = np.load(constants / f"{EMBED_TOKENS}.npy", mmap_mode="r")
    return np.asarray(table[generator.integers(len(table), size=shape[:-1])], np.float32) * np.float32(
        a.text_embedding_scale
    )


def time_embedding(shape: tuple[int, ...], time: float) -> Array:
    """In float64, sines and cosines of 1000 · time at frequencies from 1 to 1/10000, in every row (rows, width)."""
    angles = 1000 * time * np.geomspace(1, 1e-4, shape[1] // 2)
    return np.tile(np.concatenate((np.sin(angles), np.cos(angles))), (shape[0], 1))


def _stored(array: Array) -> npt.NDArray[np.float32]:
    """Values as stored in the file, rounded to float16."""
    return array.astype(np.float16).astype(np.float32)
