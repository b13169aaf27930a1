"""A step module as Core AI's converter takes it: states, and half arithmetic with the float32 islands of Core ML."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voxcpm_constants.step_models import StepModel
from voxcpm_constants.targets import StateForm
from voxcpm_conversion.core_ai.caches import LayerCache, StackedCache, StackedPast
from voxcpm_conversion.modules.audio_vae import Snake
from voxcpm_conversion.step_modules import CachedStack


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
            results = self.step(*inputs, *(LayerCache(s, i) for i in range(len(state[0])) for s in stacks))
        results = results if isinstance(results, tuple) else (results,)
        outputs, after = results[: self.outputs], results[self.outputs :]
        outputs = tuple(output.float() for output in outputs)
        if self.state == "rows":
            return *outputs, torch.stack(after[::2]), torch.stack(after[1::2])
        updated = [stack.value for stack in stacks] or after
        for tensor, new in zip(state, updated, strict=True):
            tensor.copy_(new)
        return outputs


def compute_dtype(*, half: bool) -> torch.dtype:
    """The dtype of tensors that are declared as "compute"."""
    return torch.float16 if half else torch.float32
