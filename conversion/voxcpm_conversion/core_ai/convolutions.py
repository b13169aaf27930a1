"""Matrix products with constant weights as convolutions, the form in which Core AI computes halves best.

Core AI's runtime for Linux rounds every product and partial sum of a `linear` or a transposed convolution to float16,
and sums a convolution precisely, and faster. For the Neural Engine Apple's own rules ask for a convolution of width
1 in place of `nn.Linear`, too (github.com/apple/coreai-models). Nothing was measured on Apple's hardware.
"""

from __future__ import annotations

from torch import Tensor, nn

from voxcpm_conversion.modules.audio_vae import CausalConvTranspose1d, Contexts


class LinearConvolution(nn.Conv1d):
    """A linear layer as a convolution of width 1 over its rows."""

    def __init__(self, linear: nn.Linear) -> None:
        biased = linear.bias is not None
        super().__init__(linear.in_features, linear.out_features, 1, bias=biased, device="meta")
        self.weight = _constant(linear.weight[..., None])
        if biased:
            self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """x (..., rows, inputs), or (rows, inputs) -> the same with outputs."""
        rows = x.unsqueeze(0) if x.dim() == 2 else x
        result = super().forward(rows.transpose(1, 2)).transpose(1, 2)
        return result.squeeze(0) if x.dim() == 2 else result


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


def use_convolutions(modules: nn.Module) -> None:
    """Replace linear layers and transposed convolutions, in place, by the modules above with the same weights.

    Step modules must be built afterwards, as some hold such a layer themselves.
    """
    for parent in list(modules.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, LinearConvolution(child))
            elif isinstance(child, CausalConvTranspose1d):
                setattr(parent, name, PhasesConvolution(child))
