"""The AudioVAE for training, with upstream's parameter names (`modules/audiovae/audio_vae.py`) but without weight norm.

Every convolution is causal and padded with zeros on the left. Each latent dimension is normalised to mean 0 and
variance 1 by running statistics, which `export` folds into `fc_mu`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voxcpm_training.fused_snake import snake, snake_depthwise


class Snake(nn.Module):
    """The activation x + sin²(alpha·x) / alpha, with one alpha per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, channels, samples) -> the same shape."""
        return snake(x, self.alpha)


class CausalConv1d(nn.Conv1d):
    """A convolution with `left` zeros of padding on the left."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, left: int, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, groups=groups)
        self.left = left

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, inputs, samples) -> (batch, outputs, samples / stride)."""
        return super().forward(F.pad(x, (self.left, 0)))


class PointwiseConv1d(nn.Conv1d):
    """A convolution with kernel size 1, as a matrix product."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, inputs, samples) -> (batch, outputs, samples)."""
        assert self.bias is not None  # noqa: S101
        return torch.matmul(self.weight[:, :, 0], x) + self.bias.to(x.dtype)[:, None]


class CausalConvTranspose1d(nn.ConvTranspose1d):
    """A transposed convolution with a kernel of 2·stride; samples after the last frame are cut off."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, 2 * stride, stride=stride)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """x (batch, inputs, frames) -> (batch, outputs, frames·stride)."""
        return super().forward(x)[..., : -self.stride[0]]


class _Block(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class ResidualUnit(_Block):
    """Two convolutions, the first one depthwise and dilated, with a residual connection."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__(
            Snake(channels),
            nn.Conv1d(channels, channels, 7, dilation=dilation, groups=channels),
            Snake(channels),
            PointwiseConv1d(channels, channels),
        )
        self.dilation = dilation

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, channels, samples) -> the same shape."""
        first, depthwise, second, pointwise = self.block
        assert isinstance(first, Snake)  # noqa: S101
        assert isinstance(depthwise, nn.Conv1d)  # noqa: S101
        assert depthwise.bias is not None  # noqa: S101
        y = snake_depthwise(x, first.alpha, depthwise.weight, depthwise.bias, self.dilation)
        return x + pointwise(second(y))


def _units(channels: int) -> list[nn.Module]:
    return [ResidualUnit(channels, dilation) for dilation in (1, 3, 9)]


class Encoder(nn.Module):
    """Audio -> latent frames before normalisation."""

    def __init__(self, width: int, rates: list[int], latent: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [CausalConv1d(1, width, 7, left=6)]
        for stride in rates:
            # For an odd stride, upstream pads one sample more than necessary.
            down = CausalConv1d(width, 2 * width, 2 * stride, left=2 * math.ceil(stride / 2), stride=stride)
            layers.append(_Block(*_units(width), Snake(width), down))
            width *= 2
        self.block = nn.Sequential(*layers)
        self.fc_mu = CausalConv1d(width, latent, 3, left=2)

    def forward(self, audio: Tensor) -> Tensor:
        """audio (batch, 1, frames·hop) -> (batch, latent, frames)."""
        return self.fc_mu(self.block(audio))


class Decoder(nn.Module):
    """Latent frames -> audio."""

    def __init__(self, width: int, rates: list[int], latent: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            CausalConv1d(latent, latent, 7, left=6, groups=latent),
            PointwiseConv1d(latent, width),
        ]
        for stride in rates:
            layers.append(
                _Block(Snake(width), CausalConvTranspose1d(width, width // 2, stride), *_units(width // 2))
            )
            width //= 2
        self.model = nn.Sequential(*layers, Snake(width), CausalConv1d(width, 1, 7, left=6), nn.Tanh())

    def forward(self, latents: Tensor) -> Tensor:
        """latents (batch, latent, frames) -> audio (batch, 1, frames·hop) in [-1, 1]."""
        return self.model(latents)


class Normalisation(nn.Module):
    """Normalises each latent dimension to mean 0 and variance 1 by running statistics.

    In training the values are those of the running statistics, too, but the gradient is that of batch normalisation
    (batch renormalisation, arXiv 1702.03275), so the encoder cannot grow its output to drown the noise. The statistics
    of a batch of a few seconds would move the latents by a tenth of their deviation from step to step.
    """

    running_mean: Tensor
    running_var: Tensor
    batches: Tensor
    eps = 1e-4
    _MOMENTUM = 0.01

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(latent))
        self.register_buffer("running_var", torch.ones(latent))
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, latent, frames) -> the same shape."""
        if self.training:
            mean = x.mean((0, 2))
            variance = x.var((0, 2), correction=0)
            with torch.no_grad():
                self.batches += 1
                momentum = (1 / self.batches).clamp(min=self._MOMENTUM)
                self.running_mean.lerp_(mean, momentum)
                self.running_var.lerp_(variance, momentum)
                running = (self.running_var + self.eps).sqrt()
                scale = (variance + self.eps).sqrt() / running
                offset = (mean - self.running_mean) / running
            y = (x - mean[:, None]) / (variance + self.eps).sqrt()[:, None]
            return y * scale[:, None] + offset[:, None]
        return (x - self.running_mean[:, None]) / (self.running_var + self.eps).sqrt()[:, None]


class AudioVAE(nn.Module):
    """Encoder, decoder and normalisation of latents. Raises ValueError if the config is not depthwise."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        if not config["depthwise"]:
            raise ValueError("only a depthwise AudioVAE is supported")
        latent = config["latent_dim"]
        self.encoder = Encoder(config["encoder_dim"], config["encoder_rates"], latent)
        self.decoder = Decoder(config["decoder_dim"], config["decoder_rates"], latent)
        self.normalisation = Normalisation(latent)

    def encode(self, audio: Tensor) -> Tensor:
        """audio (batch, 1, frames·hop) -> normalised latents (batch, latent, frames), float32."""
        return self.normalisation(self.encoder(audio).float())
