"""Discriminators over periods of samples (HiFi-GAN, arXiv 2010.05646) and complex spectrograms (DAC, 2306.06546).

The losses are sums over discriminators and layers, as in both papers: means make them eight and forty times weaker
than the spectral losses, and such an AudioVAE does not learn pitch (TRIALS.md, buzz).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from voxcpm_training.spectral_losses import spectrogram


def _conv(inputs: int, outputs: int, kernel: tuple[int, int], stride: tuple[int, int] = (1, 1)) -> nn.Module:
    padding = (kernel[0] // 2, kernel[1] // 2)
    return weight_norm(nn.Conv2d(inputs, outputs, kernel, stride, padding))


class _Discriminator(nn.Module):
    layers: nn.ModuleList

    def judge(self, x: Tensor) -> list[Tensor]:
        """Outputs of all layers; the last one is the score."""
        features = []
        x = x.contiguous(memory_format=torch.channels_last)
        for layer in self.layers[:-1]:
            x = F.leaky_relu(layer(x), 0.1)
            features.append(x)
        return [*features, self.layers[-1](x)]


class PeriodDiscriminator(_Discriminator):
    """A discriminator over every `period`-th sample (HiFi-GAN)."""

    def __init__(self, period: int, widths: tuple[int, ...] = (32, 128, 256, 512)) -> None:
        super().__init__()
        self.period = period
        ends = (1, *widths)
        convolutions = [_conv(a, b, (5, 1), (3, 1)) for a, b in zip(ends, widths, strict=False)]
        self.layers = nn.ModuleList(
            [*convolutions, _conv(widths[-1], widths[-1], (5, 1)), _conv(widths[-1], 1, (3, 1))]
        )

    def forward(self, audio: Tensor) -> list[Tensor]:
        """Outputs of all layers for audio (batch, samples)."""
        whole = audio.size(-1) // self.period * self.period
        return self.judge(audio[:, :whole].reshape(audio.size(0), 1, -1, self.period))


class SpectrogramDiscriminator(_Discriminator):
    """A discriminator over the complex spectrogram with windows of `length` samples (DAC)."""

    window: Tensor

    def __init__(self, length: int, width: int = 32) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(length), persistent=False)
        strided = [_conv(width, width, (3, 9), (1, 2)) for _ in range(3)]
        self.layers = nn.ModuleList(
            [_conv(2, width, (3, 9)), *strided, _conv(width, width, (3, 3)), _conv(width, 1, (3, 3))]
        )

    def forward(self, audio: Tensor) -> list[Tensor]:
        """Outputs of all layers for audio (batch, samples)."""
        with torch.autocast(audio.device.type, enabled=False):
            spectrum = torch.view_as_real(spectrogram(audio.float(), self.window))
        return self.judge(spectrum.permute(0, 3, 2, 1))


class Discriminators(nn.Module):
    """Five discriminators over periods and three over spectrograms."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            [
                *(PeriodDiscriminator(p) for p in (2, 3, 5, 7, 11)),
                *(SpectrogramDiscriminator(n) for n in (512, 1024, 2048)),
            ]
        )

    def forward(self, audio: Tensor) -> list[list[Tensor]]:
        """Outputs of all layers of each discriminator for audio (batch, samples)."""
        return [member(audio) for member in self.members]


def discriminator_loss(judged: list[list[Tensor]]) -> Tensor:
    """Least-squares loss of the discriminators, summed over them: targets 1 for real and 0 for decoded speech.

    judged: the outputs for a batch whose first half is real and whose second half is decoded speech.
    """
    terms = []
    for outputs in judged:
        real, decoded = outputs[-1].float().chunk(2)
        terms.append((1 - real).square().mean() + decoded.square().mean())
    return torch.stack(terms).sum()


def generator_losses(judged: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    """The AudioVAE's losses: adversarial (least squares), and feature matching (relative distance of layer outputs).

    Sums over discriminators, and over all layers. judged: as for `discriminator_loss`. A distance is relative to the
    outputs for both signals, so it is at most 2: a discriminator tells them apart by outputs near zero for real speech,
    and relative to those alone the distance is unbounded.
    """
    adversarial, distances = [], []
    for outputs in judged:
        adversarial.append((1 - outputs[-1].float().chunk(2)[1]).square().mean())
        for layer in outputs[:-1]:
            real, decoded = layer.float().chunk(2)
            size = layer.detach().float().abs().mean().clamp(min=1e-3)
            distances.append((real.detach() - decoded).abs().mean() / size)
    return torch.stack(adversarial).sum(), torch.stack(distances).sum()
