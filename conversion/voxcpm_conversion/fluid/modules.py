"""Step modules with the inputs and outputs of the layout, around those of our own step models."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from voxcpm_constants import step_models as names
from voxcpm_constants.step_models import StepSizes, declare_step_models
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.modules.audio_vae import Contexts, Decoder, Encoder
from voxcpm_conversion.step_modules import FeatEncoderStep, build_step, loaded_modules


class ZeroContexts(Contexts):
    """The left contexts at the start of a signal: zeros, as in upstream's whole-signal convolutions."""

    def __init__(self) -> None:
        super().__init__(())

    def extend(self, x: Tensor, width: int) -> Tensor:
        """x (1, C, L) after `width` zeros: (1, C, width + L)."""
        return nn.functional.pad(x, (width, 0))


class WholeSignal(nn.Module):
    """One half of the AudioVAE, applied to a signal from its start."""

    def __init__(self, half: Encoder | Decoder) -> None:
        super().__init__()
        self.network = half

    def forward(self, signal: Tensor) -> Tensor:
        """Audio (1, 1, samples) -> latents (1, latent_dim, frames), or the reverse."""
        return self.network(signal, ZeroContexts())


class SingleEmbedding(nn.Module):
    """An LM step without the chunk axis."""

    def __init__(self, step: nn.Module) -> None:
        super().__init__()
        self.step = step

    def forward(self, embed: Tensor, position: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        """embed (1, hidden), position (1,), keys and values of each layer -> outputs (1, width), updated caches."""
        results = self.step(embed.unsqueeze(1), position, *caches)
        count = len(results) - len(caches)
        return *(result.squeeze(1) for result in results[:count]), *results[count:]


class TimedDiT(nn.Module):
    """A DiT step that computes the embeddings of its times (upstream `SinusoidalPosEmb`)."""

    def __init__(self, step: nn.Module, width: int) -> None:
        super().__init__()
        self.step = step
        half = width // 2
        frequencies = 1000 * torch.exp(torch.arange(half).float() * (-math.log(10000) / (half - 1)))
        self.frequencies = nn.Buffer(frequencies[None], persistent=False)

    def forward(self, x: Tensor, mu: Tensor, t: Tensor, cond: Tensor, dt: Tensor) -> Tensor:
        """x, cond (2, latent_dim, frames); mu (2, hidden); t, dt (2,) -> velocity (2, latent_dim, frames)."""
        return self.step(x, mu, self._embedded(t), cond, self._embedded(dt))

    def _embedded(self, times: Tensor) -> Tensor:
        angles = times[:, None] * self.frequencies
        return torch.cat((angles.sin(), angles.cos()), dim=-1)


def build(name: str, checkpoint: Checkpoint, sizes: StepSizes) -> nn.Module:
    """The module of a package, with its weights in float32."""
    a = checkpoint.architecture
    declared = declare_step_models(a, sizes)[name]
    modules = loaded_modules(checkpoint, declared, sizes)
    step = build_step(declared, modules, a, sizes)
    builders: dict[str, Callable[[], nn.Module]] = {
        names.AUDIO_VAE_ENCODER: lambda: WholeSignal(modules.audio_vae.encoder),
        names.AUDIO_VAE_DECODER: lambda: WholeSignal(modules.audio_vae.decoder),
        # The layout's driver applies enc_to_lm_proj.
        names.FEAT_ENCODER: lambda: FeatEncoderStep(modules.feat_encoder, nn.Identity(), a),  # type: ignore[arg-type]
        names.BASE_LM_STEP: lambda: SingleEmbedding(step),
        names.RESIDUAL_LM_STEP: lambda: SingleEmbedding(step),
        names.LOCDIT_STEP: lambda: TimedDiT(step, a.dit_config.hidden_dim),
    }
    return builders[name]().eval().requires_grad_(False)
