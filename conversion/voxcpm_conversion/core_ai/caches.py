"""KV caches as two tensors, the keys and the values of all layers, in the form that Core AI's GPU is known to run.

A step writes its rows with one `slice_update` a layer at a position known only at run time, and reads the whole buffer
back: john-rocky/coreai-model-zoo's VoxCPM and RahulRachuri/pocket-tts-swift do so. torch has no operation for it
(`index_copy_` becomes `scatter_nd`, whose indices have a dynamic shape), so it is one of our own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voxcpm_conversion.core_ai.toolchain import import_module
from voxcpm_conversion.modules.minicpm4 import Cached, Past

WRITE = "voxcpm::write_rows"


@torch.library.custom_op(WRITE, mutates_args=())
def write_rows(cache: Tensor, rows: Tensor, start: Tensor, layer: int) -> Tensor:
    """The cache (layers, 1, kv_heads, positions, head_dim) with rows (1, kv_heads, S, head_dim) from start (1,) on."""
    written, first = cache.clone(), int(start)
    written[layer, :, :, first : first + rows.size(2)] = rows
    return written


@write_rows.register_fake
def _(cache: Tensor, rows: Tensor, start: Tensor, layer: int) -> Tensor:  # noqa: ARG001 - the operation's arguments
    return torch.empty_like(cache)


def register_lowering(converter: Any) -> None:
    """Have coreai-torch's converter turn `write_rows` into `slice_update`."""
    coreai = import_module("coreai._compiler.dialects.coreai")
    operands = import_module("coreai_torch._utils").get_operands

    def numbers(*values: int) -> Any:
        return coreai.constant(np.array(values, np.int32))

    @converter.register_torch_lowering(f"{WRITE}.default")  # type: ignore[untyped-decorator]
    def lower(values: dict[str, Any], node: Any, loc: Any) -> Any:  # noqa: ARG001 - the converter's arguments
        cache, rows, start = operands(values, node, [0, 1, 2])
        layer = node.args[3]
        _, _, heads, _, width = cache.type.shape
        stop = coreai.add(start, numbers(rows.type.shape[2]))
        first = coreai.concat(0, [numbers(layer, 0, 0), start, numbers(0)])
        last = coreai.concat(0, [numbers(layer + 1, 1, heads), stop, numbers(width)])
        return coreai.slice_update(
            cache, first, last, numbers(1, 1, 1, 1, 1), coreai.expand_dims(rows, numbers(0))
        )


class StackedCache:
    """One of the two tensors in the course of a step."""

    def __init__(self, state: Tensor, position: Tensor) -> None:
        self.value, self.position = state, position

    def write(self, layer: int, rows: Tensor) -> Tensor:
        """Write rows (1, kv_heads, S, head_dim); the layer's cache, (1, kv_heads, positions, head_dim)."""
        self.value = torch.ops.voxcpm.write_rows(self.value, rows, self.position, layer)
        return self.value[layer]


@dataclass(frozen=True)
class LayerCache:
    """The cache of one layer within a stacked one."""

    stack: StackedCache
    layer: int


class StackedPast(Past):
    """The cache of one layer, whose keys and values are a `LayerCache` each."""

    def written(self, keys: Tensor, values: Tensor) -> Cached:
        """What `Past.written` returns."""
        k, v = (
            cache.stack.write(cache.layer, rows)  # type: ignore[attr-defined]
            for cache, rows in zip(self.cached, (keys, values), strict=True)
        )
        return k, v
