"""Small speech discriminators: over periods of samples (HiFi-GAN) and over complex spectrograms (DAC)."""

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
        for layer in self.layers[:-1]:
            x = F.leaky_relu(layer(x), 0.1)
            features.append(x)
        return [*features, self.layers[-1](x)]


class PeriodDiscriminator(_Discriminator):
    """A discriminator over every `period`-th sample (HiFi-GAN)."""

    def __init__(self, period: int, widths: tuple[int, ...] = (16, 64, 128, 256)) -> None:
        super().__init__()
        self.period = period
        ends = (1, *widths)
        convolutions = [_conv(a, b, (5, 1), (3, 1)) for a, b in zip(ends, widths, strict=False)]
        self.layers = nn.ModuleList([*convolutions, _conv(widths[-1], 256, (5, 1)), _conv(256, 1, (3, 1))])

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
        return self.judge(spectrum.permute(0, 3, 2, 1).contiguous())


class Discriminators(nn.Module):
    """Five discriminators over periods and three over spectrograms."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            [
                *(PeriodDiscriminator(p) for p in (2, 3, 5, 7, 11)),
                *(SpectrogramDiscriminator(n) for n in (256, 512, 1024)),
            ]
        )

    def forward(self, audio: Tensor) -> list[list[Tensor]]:
        """Outputs of all layers of each discriminator for audio (batch, samples)."""
        return [member(audio) for member in self.members]


def discriminator_loss(real: list[list[Tensor]], decoded: list[list[Tensor]]) -> Tensor:
    """Least-squares discriminator loss, with targets of 1 for real and 0 for decoded speech."""
    terms = [
        (1 - r[-1].float()).square().mean() + d[-1].float().square().mean()
        for r, d in zip(real, decoded, strict=True)
    ]
    return torch.stack(terms).mean()


def generator_losses(real: list[list[Tensor]], decoded: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    """The AudioVAE's losses: adversarial (least squares), and feature matching (relative distance of layer outputs)."""
    adversarial = torch.stack([(1 - d[-1].float()).square().mean() for d in decoded]).mean()
    distances = [
        (a.float().detach() - b.float()).abs().mean() / a.float().detach().abs().mean().clamp(min=1e-3)
        for r, d in zip(real, decoded, strict=True)
        for a, b in zip(r[:-1], d[:-1], strict=True)
    ]
    return adversarial, torch.stack(distances).mean()
