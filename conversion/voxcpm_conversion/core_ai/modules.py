"""Step modules in the form that Core AI's converter accepts.

- **State.** KV caches are two tensors, the keys and the values of all layers. A step writes its rows with one
  `slice_update` a layer at a position known only at run time, and reads the whole buffer back, as
  john-rocky/coreai-model-zoo's VoxCPM and RahulRachuri/pocket-tts-swift do on GPUs. torch has no operation for it
  (`index_copy_` becomes `scatter_nd`, whose indices have a dynamic shape), so it is one of our own.
- **Transposed convolutions** become plain ones: Apple's runtime computes them wrongly on the CPU if the kernel has 8
  samples or more, or the stride is 16 or more (john-rocky/coreai-model-zoo PR 18).
- **Half arithmetic** has the float32 islands of Core ML.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from voxcpm_constants.step_models import StepModel
from voxcpm_constants.targets import StateForm
from voxcpm_conversion.core_ai.toolchain import import_module
from voxcpm_conversion.modules.audio_vae import CausalConvTranspose1d, Contexts, Snake
from voxcpm_conversion.modules.minicpm4 import Cached, Past
from voxcpm_conversion.step_modules import CachedStack

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
    """Make coreai-torch's converter lower `write_rows` to `slice_update`."""
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
    """One of the two state tensors during a step."""

    def __init__(self, state: Tensor, position: Tensor) -> None:
        self.value, self.position = state, position

    def write(self, layer: int, rows: Tensor) -> Tensor:
        """Write rows (1, kv_heads, S, head_dim); the layer's cache, (1, kv_heads, positions, head_dim)."""
        self.value = torch.ops.voxcpm.write_rows(self.value, rows, self.position, layer)
        return self.value[layer]


class StackedPast(Past):
    """The cache of one layer, whose keys and values are each written by a function of their rows."""

    cached: Any

    def written(self, keys: Tensor, values: Tensor) -> Cached:
        """See `Past`."""
        write_keys, write_values = self.cached
        return write_keys(keys), write_values(values)


class PhasesConvolution(nn.Conv1d):
    """A transposed convolution as a plain one of width 2, with an output channel per sample of a frame.

    With a kernel of 2·stride, sample r of frame t is kernel[r] · x[t] + kernel[r + stride] · x[t - 1].
    """

    def __init__(self, transposed: CausalConvTranspose1d) -> None:
        stride, weight = transposed.stride[0], transposed.weight
        inputs, outputs, _ = weight.shape
        super().__init__(inputs, outputs * stride, 2, bias=transposed.bias is not None, device="meta")
        taps = weight.reshape(inputs, outputs, 2, stride).flip(2)
        self.weight = _constant(taps.permute(1, 3, 0, 2).reshape(outputs * stride, inputs, 2))
        if transposed.bias is not None:
            self.bias = _constant(transposed.bias.repeat_interleave(stride))
        self.phases = stride

    def forward(self, x: Tensor, contexts: Contexts) -> Tensor:  # type: ignore[override]
        """x (1, inputs, L) -> (1, outputs, L·stride)."""
        phases = super().forward(contexts.extend(x, 1))
        channels = phases.size(1) // self.phases
        return phases.reshape(1, channels, self.phases, -1).transpose(2, 3).reshape(1, channels, -1)


def _constant(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight.detach(), requires_grad=False)


def use_phases(modules: nn.Module) -> None:
    """Replace transposed convolutions, in place, by `PhasesConvolution` with the same weights."""
    for parent in list(modules.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, CausalConvTranspose1d):
                setattr(parent, name, PhasesConvolution(child))


def halve(module: nn.Module) -> None:
    """Round a module's weights to float16, in place.

    The alphas of Snake stay float32, as coremltools folds 1 / alpha in float32 before it rounds.
    """
    for part in module.modules():
        if not isinstance(part, Snake):
            for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
                if tensor.is_floating_point():
                    tensor.data = tensor.data.half()


class CoreAIStep(nn.Module):
    """A step module with the tensors of its Core AI function.

    declared: of the function, with stacked caches. Declared inputs and outputs are float32 in any arithmetic, and
    rounded inside. What is written into a native state in place becomes a state of the program.
    """

    def __init__(self, step: nn.Module, declared: StepModel, state: StateForm, *, half: bool) -> None:
        super().__init__()
        self.step, self.state, self.half_inputs = step, state, half
        self.inputs, self.outputs = len(declared.inputs), len(declared.outputs)
        self.caches = declared.has_caches
        if self.caches and state == "native":
            for module in step.modules():
                if isinstance(module, CachedStack):
                    module.past = StackedPast

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The declared outputs for the declared inputs and the states, then the new rows of caches that are inputs."""
        inputs = tuple(
            tensor.half() if self.half_inputs and tensor.is_floating_point() else tensor
            for tensor in tensors[: self.inputs]
        )
        state = tensors[self.inputs :]
        stacks: list[StackedCache] = []
        if not self.caches:
            results = self.step(*inputs, *state)
        elif self.state == "rows":
            results = self.step(*inputs, *(tensor[i] for i in range(len(state[0])) for tensor in state))
        else:
            _, position = inputs
            stacks = [StackedCache(tensor, position) for tensor in state]
            results = self.step(*inputs, *(partial(s.write, i) for i in range(len(state[0])) for s in stacks))
        results = results if isinstance(results, tuple) else (results,)
        outputs, after = results[: self.outputs], results[self.outputs :]
        outputs = tuple(output.float() for output in outputs)
        if self.state == "rows":
            return *outputs, torch.stack(after[::2]), torch.stack(after[1::2])
        updated = [stack.value for stack in stacks] or after
        for tensor, new in zip(state, updated, strict=True):
            tensor.copy_(new)
        return outputs
