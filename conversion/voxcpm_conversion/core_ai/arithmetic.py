"""Half arithmetic of a step module, with the float32 islands of the ML program."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voxcpm_constants.step_models import StepModel
from voxcpm_conversion.modules.audio_vae import Snake


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
    """A step module as Core AI's converter takes it.

    Declared inputs and outputs are float32 in any arithmetic, and rounded inside. States are written in place, which
    the converter turns into states of the program.
    """

    def __init__(self, step: nn.Module, declared: StepModel, *, half: bool, native: bool) -> None:
        super().__init__()
        self.step, self.half_inputs = step, half
        self.inputs, self.outputs = len(declared.inputs), len(declared.outputs)
        self.native = native

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The declared outputs for the declared inputs and the states, and passed states as they are afterwards."""
        inputs = tuple(
            tensor.half() if self.half_inputs and tensor.is_floating_point() else tensor
            for tensor in tensors[: self.inputs]
        )
        results = self.step(*inputs, *tensors[self.inputs :])
        results = results if isinstance(results, tuple) else (results,)
        outputs = tuple(output.float() for output in results[: self.outputs])
        return outputs if self.native else (*outputs, *results[self.outputs :])


def compute_dtype(*, half: bool) -> torch.dtype:
    """The dtype of tensors that are declared as "compute"."""
    return torch.float16 if half else torch.float32
