"""Transposed convolutions as plain ones.

Apple's runtime computes a transposed convolution wrongly on the CPU if its kernel has 8 samples or more, or its stride
is 16 or more (john-rocky/coreai-model-zoo PR 18).
"""

from __future__ import annotations

from torch import Tensor, nn

from voxcpm_conversion.modules.audio_vae import CausalConvTranspose1d, Contexts


class PhasesConvolution(nn.Conv1d):
    """A transposed convolution as one of width 2 that has an output channel for each sample between two frames.

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
    """Replace transposed convolutions, in place, by the module above with the same weights."""
    for parent in list(modules.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, CausalConvTranspose1d):
                setattr(parent, name, PhasesConvolution(child))
