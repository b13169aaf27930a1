"""Multi-resolution spectral distances: the AudioVAE's reconstruction loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

# What is this far below full scale (-70 dB) hardly counts: with a lower floor nearly all of the gradient comes from
# silent frames. Relative to the magnitude of white noise in a Hann window.
_FLOOR = 3e-4
# Phases count up to this frequency, and loud harmonics more than weak ones by the square root of their magnitudes.
_PHASE_HZ, _COMPRESSION = 1500, 0.5


def _floor(window: int) -> float:
    return _FLOOR * math.sqrt(0.375 * window)


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


def _log_magnitude(audio: Tensor, window: Tensor, mel: Tensor | None = None) -> Tensor:
    spectrum = torch.view_as_real(spectrogram(audio, window)).square().sum(-1)
    # The gradient of a square root is unbounded at zero.
    magnitude = (spectrum + 1e-8).sqrt()
    if mel is not None:
        magnitude = torch.matmul(mel, magnitude)
    return (magnitude + _floor(window.numel())).log10()


class SpectralLoss(nn.Module):
    """Mean distances of log10 spectrograms: over mel bands as in DAC (arXiv 2306.06546), and over linear bins.

    Mel bands hardly charge for pitch, which is in the fine structure of long windows. The third distance is that of
    complex spectrograms at low frequencies. A decoder is the same for every frame, so from constant latents it can only
    make multiples of the frame rate: the latents have to carry the phase of the voice, and magnitudes do not charge for
    it.
    """

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.mel_windows = (32, 64, 128, 256, 512, 1024, 2048)
        self.linear_windows = (512, 1024, 2048, 4096)
        self.phase_windows = (512, 1024)
        self.rate = rate
        for length in {*self.mel_windows, *self.linear_windows}:
            self.register_buffer(f"window_{length}", torch.hann_window(length))
        for length, bands in zip(self.mel_windows, (5, 10, 20, 40, 80, 128, 160), strict=True):
            self.register_buffer(f"mel_{length}", mel_filters(length // 2 + 1, bands, rate))

    def forward(self, decoded: Tensor, audio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The distances over mel bands, linear bins and phases for two float32 signals (batch, samples), scalars."""
        both = torch.cat((decoded, audio))
        mel = [self._distance(both, n, getattr(self, f"mel_{n}")) for n in self.mel_windows]
        linear = [self._distance(both, n, None) for n in self.linear_windows]
        phase = [self._phase_distance(both, n) for n in self.phase_windows]
        return torch.stack(mel).mean(), torch.stack(linear).mean(), torch.stack(phase).mean()

    def _distance(self, both: Tensor, length: int, mel: Tensor | None) -> Tensor:
        decoded, audio = _log_magnitude(both, getattr(self, f"window_{length}"), mel).chunk(2)
        return (decoded - audio).abs().mean()

    def _phase_distance(self, both: Tensor, length: int) -> Tensor:
        """Distance of complex spectrograms with compressed magnitudes, relative to the recording's: 1 for silence."""
        bins = math.ceil(_PHASE_HZ * length / self.rate)
        spectrum = torch.view_as_real(spectrogram(both, getattr(self, f"window_{length}"))[:, :bins])
        magnitude = (spectrum.square().sum(-1, keepdim=True) + _floor(length) ** 2).sqrt()
        decoded, audio = (spectrum * magnitude**-_COMPRESSION).chunk(2)
        distance = ((decoded - audio).square().sum(-1) + 1e-6).sqrt()
        return distance.mean() / audio.square().sum(-1).sqrt().mean().clamp(min=0.2)
