"""Multi-resolution spectral distances: the AudioVAE's reconstruction loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_FLOOR = 1e-5


def mel_filters(bins: int, bands: int, rate: int) -> Tensor:
    """Mel filters (bands, bins): triangles at equal distances on the mel scale (HTK's formula). rate: in Hz."""
    highest = 2595 * math.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, highest, bands + 2) / 2595) - 1)
    frequencies = torch.linspace(0, rate / 2, bins)
    rising = (frequencies[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies[None]) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0)


def spectrogram(audio: Tensor, window: Tensor) -> Tensor:
    """Complex STFT (batch, bins, frames) of audio (batch, samples), with a hop of a quarter of the window."""
    length = window.numel()
    return torch.stft(audio, length, length // 4, window=window, center=True, return_complex=True)


class MultiScaleMelLoss(nn.Module):
    """Mean distance of log10 mel spectrograms over windows of 2 to 128 ms, as in DAC (arXiv 2306.06546)."""

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.windows = (32, 64, 128, 256, 512, 1024, 2048)
        for length, bands in zip(self.windows, (5, 10, 20, 40, 80, 128, 160), strict=True):
            self.register_buffer(f"window_{length}", torch.hann_window(length))
            self.register_buffer(f"mel_{length}", mel_filters(length // 2 + 1, bands, rate))

    def forward(self, decoded: Tensor, audio: Tensor) -> Tensor:
        """The loss, a scalar, for two float32 signals (batch, samples)."""
        total = torch.zeros((), device=audio.device)
        for length in self.windows:
            window, mel = getattr(self, f"window_{length}"), getattr(self, f"mel_{length}")
            got, expected = (self._log_mel(x, window, mel) for x in (decoded, audio))
            total = total + (got - expected).abs().mean()
        return total / len(self.windows)

    @staticmethod
    def _log_mel(audio: Tensor, window: Tensor, mel: Tensor) -> Tensor:
        spectrum = torch.view_as_real(spectrogram(audio, window)).square().sum(-1)
        # The gradient of a square root is unbounded at zero.
        magnitude = (spectrum + 1e-10).sqrt()
        return torch.matmul(mel, magnitude).clamp(min=_FLOOR).log10()
