"""The AudioVAE with its left contexts as inputs and outputs (upstream `modules/audiovae/`).

Every convolution is causal: with the preceding samples as left context, a chunk's result equals that of
the whole signal. `Contexts` gives each convolution its left context, in order of execution, and collects the new ones.

Shapes below: C channels, L samples at the current rate; the batch is 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from voxcpm_constants.architecture import Architecture, AudioVAEConfig
from voxcpm_constants.audio_vae_contexts import downsampling_context
from voxcpm_constants.errors import CheckpointError

# Largest 1/alpha that fp16 holds; below alpha = 1/6e4, sin²(alpha·x)/alpha is under x²/6e4 either way.
_LARGEST_RECIPROCAL = 6.0e4


class Contexts:
    """The left contexts of one call, in order of execution: those before the chunk, and those after it."""

    def __init__(self, before: tuple[Tensor, ...]) -> None:
        self._before: Iterator[Tensor] = iter(before)
        self.after: list[Tensor] = []

    def extend(self, x: Tensor, width: int) -> Tensor:
        """x (1, C, L) after its `width` samples of left context: (1, C, width + L). Stores the last `width` samples."""
        extended = torch.cat((next(self._before), x), dim=-1)
        self.after.append(extended[..., -width:])
        return extended


class CausalConv1d(nn.Conv1d):
    """A convolution whose padding is `context` samples on the left, taken from the `Contexts` of the call."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, context: int = 0, **options: Any) -> None:
        """options: `stride`, `dilation` and `groups` of `nn.Conv1d`."""
        super().__init__(inputs, outputs, kernel, **options)
        self.context = context

    def forward(self, x: Tensor, contexts: Contexts) -> Tensor:  # type: ignore[override]
        """x (1, inputs, L) -> (1, outputs, L / stride)."""
        return super().forward(contexts.extend(x, self.context) if self.context else x)


class CausalConvTranspose1d(nn.ConvTranspose1d):
    """A transposed convolution with a kernel of 2·stride: each output depends on its own frame and the previous one.

    The outputs that need a frame before the context or after the chunk are cut off by its padding, not by a slice.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, 2 * stride, stride=stride, padding=stride)

    def forward(self, x: Tensor, contexts: Contexts) -> Tensor:  # type: ignore[override]
        """x (1, inputs, L) -> (1, outputs, L·stride)."""
        return super().forward(contexts.extend(x, 1))


class Snake(nn.Module):
    """The activation x + sin²(alpha·x) / alpha, with one alpha per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """x (1, C, L) -> (1, C, L)."""
        # Not 1 / alpha: coremltools turns that into `inverse`, which adds 1e-4 to the divisor.
        reciprocal = torch.ones_like(self.alpha) / (self.alpha + 1e-9)
        reciprocal = reciprocal.clamp(-_LARGEST_RECIPROCAL, _LARGEST_RECIPROCAL)
        sine = torch.sin(self.alpha.to(x.dtype) * x)
        return x + reciprocal.to(x.dtype) * (sine * sine)


class Chain(nn.ModuleList):
    """A sequence of modules, some of which take contexts; the indices in parameter names are upstream's."""

    def forward(self, x: Tensor, contexts: Contexts) -> Tensor:
        """x (1, C, L) -> the result of the last module."""
        for module in self:
            x = module(x) if isinstance(module, (Snake, nn.Tanh)) else module(x, contexts)
        return x


class _Block(nn.Module):
    """A `Chain` in an attribute `block`, as upstream names it."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.block = Chain(layers)

    def forward(self, x: Tensor, contexts: Contexts) -> Tensor:
        return self.block(x, contexts)


class ResidualUnit(_Block):
    """Two convolutions, the first one dilated, with a residual connection."""

    def __init__(self, channels: int, dilation: int, groups: int) -> None:
        super().__init__(
            Snake(channels),
            CausalConv1d(channels, channels, 7, context=6 * dilation, dilation=dilation, groups=groups),
            Snake(channels),
            CausalConv1d(channels, channels, 1),
        )

    def forward(self, x: Tensor, contexts: Contexts) -> Tensor:
        """x (1, C, L) -> (1, C, L)."""
        return x + super().forward(x, contexts)


def _residual_units(channels: int, depthwise: bool) -> list[nn.Module]:
    return [ResidualUnit(channels, dilation, channels if depthwise else 1) for dilation in (1, 3, 9)]


class Encoder(nn.Module):
    """Audio -> latent frames. Each downsampling block doubles the channels."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        vae = a.audio_vae_config
        channels = vae.encoder_dim
        blocks: list[nn.Module] = [CausalConv1d(1, channels, 7, context=6)]
        for stride in vae.encoder_rates:
            context = downsampling_context(a, stride)
            down = CausalConv1d(channels, 2 * channels, 2 * stride, context=context, stride=stride)
            blocks.append(_Block(*_residual_units(channels, vae.depthwise), Snake(channels), down))
            channels *= 2
        self.block = Chain(blocks)
        self.fc_mu = CausalConv1d(channels, vae.latent_dim, 3, context=2)
        # Only upstream's training uses it; it is declared because checkpoints contain its weights.
        self.fc_logvar = CausalConv1d(channels, vae.latent_dim, 3, context=2)

    def forward(self, audio: Tensor, contexts: Contexts) -> Tensor:
        """audio (1, 1, frames·hop) -> latents (1, latent_dim, frames): the mean, as in upstream's `encode`."""
        return self.fc_mu(self.block(audio, contexts), contexts)


class DecoderBlock(_Block):
    """Upsampling by `stride`, then three residual units: (1, inputs, L) -> (1, outputs, L·stride)."""

    def __init__(self, inputs: int, outputs: int, stride: int, depthwise: bool) -> None:
        units = _residual_units(outputs, depthwise)
        super().__init__(Snake(inputs), CausalConvTranspose1d(inputs, outputs, stride), *units)


class SampleRateCondition(nn.Module):
    """VoxCPM2's learned scale and bias per channel, one pair per range of output sample rates.

    The rate is fixed at conversion, and with it the index `bucket` of its range. boundaries: between the ranges, in Hz.
    Raises CheckpointError for a condition that is not supported.
    """

    def __init__(self, channels: int, vae: AudioVAEConfig, boundaries: tuple[int, ...]) -> None:
        super().__init__()
        if not vae.cond_type.startswith("scale_bias") or vae.cond_out_layer:
            raise CheckpointError(
                f"audio_vae_config: sample-rate condition {vae.cond_type!r} with cond_out_layer={vae.cond_out_layer} "
                "is not supported (expected scale_bias or scale_bias_init without an output layer)"
            )
        rate = vae.out_sample_rate or vae.sample_rate
        self.bucket = sum(rate > boundary for boundary in boundaries)
        self.scale_embed = nn.Embedding(len(boundaries) + 1, channels)
        self.bias_embed = nn.Embedding(len(boundaries) + 1, channels)

    def forward(self, x: Tensor) -> Tensor:
        """x (1, C, L) -> (1, C, L)."""
        scale, bias = self.scale_embed.weight[self.bucket], self.bias_embed.weight[self.bucket]
        return x * scale[:, None] + bias[:, None]


class Decoder(nn.Module):
    """Latent frames -> audio. Each upsampling block halves the channels, after its sample-rate condition if any."""

    def __init__(self, vae: AudioVAEConfig) -> None:
        super().__init__()
        channels = vae.decoder_dim
        layers: list[nn.Module] = (
            [
                CausalConv1d(vae.latent_dim, vae.latent_dim, 7, context=6, groups=vae.latent_dim),
                CausalConv1d(vae.latent_dim, channels, 1),
            ]
            if vae.depthwise
            else [CausalConv1d(vae.latent_dim, channels, 7, context=6)]
        )
        conditions = {}
        for stride in vae.decoder_rates:
            if vae.sr_bin_boundaries is not None:
                conditions[str(len(layers))] = SampleRateCondition(channels, vae, vae.sr_bin_boundaries)
            layers.append(DecoderBlock(channels, channels // 2, stride, vae.depthwise))
            channels //= 2
        self.model = Chain([*layers, Snake(channels), CausalConv1d(channels, 1, 7, context=6), nn.Tanh()])
        self.sr_cond_model = nn.ModuleDict(conditions)

    def forward(self, latents: Tensor, contexts: Contexts) -> Tensor:
        """latents (1, latent_dim, frames) -> audio (1, 1, frames·hop) within [-1, 1]."""
        x = latents
        for index, layer in enumerate(self.model):
            if str(index) in self.sr_cond_model:
                x = self.sr_cond_model[str(index)](x)
            x = layer(x) if isinstance(layer, (Snake, nn.Tanh)) else layer(x, contexts)
        return x


class AudioVAE(nn.Module):
    """Encoder and decoder under upstream's names. Raises CheckpointError for `use_noise_block`."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        if a.audio_vae_config.use_noise_block:
            raise CheckpointError(
                "audio_vae_config: use_noise_block=true draws noise inside the decoder, which a step model cannot; "
                "no published VoxCPM uses it"
            )
        self.encoder = Encoder(a)
        self.decoder = Decoder(a.audio_vae_config)
