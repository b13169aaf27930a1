"""The modules that process one patch: the local encoder, the local DiT and the scalar quantiser.

Upstream: `modules/locenc/local_encoder.py`, `modules/locdit/local_dit.py` and `local_dit_v2.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voxcpm_constants.architecture import Transformer
from voxcpm_conversion.modules.minicpm4 import Rope, Stack


class LocalEncoder(nn.Module):
    """A transformer from a patch of latent frames to one vector: the output at a learned first token."""

    def __init__(self, t: Transformer, feat_dim: int, patch_size: int) -> None:
        super().__init__()
        self.special_token = nn.Parameter(torch.zeros(1, 1, 1, t.hidden_size))
        self.in_proj = nn.Linear(feat_dim, t.hidden_size)
        self.encoder = Stack(t, patch_size + 1)

    def forward(self, patches: Tensor, rope: Rope) -> Tensor:
        """patches (1, T, P, feat_dim) -> (1, T, hidden)."""
        frames = self.in_proj(patches.squeeze(0))
        # A product with zeros repeats the token for every patch without shape arithmetic on T.
        token = frames[:, :1] * 0.0 + self.special_token[0]
        return self.encoder(torch.cat((token, frames), dim=1), rope, keep=slice(0, 1)).transpose(0, 1)


class TimestepMLP(nn.Module):
    """Two linear layers on a sinusoidal time embedding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(width, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, embedding: Tensor) -> Tensor:
        """embedding (N, width) -> (N, width)."""
        return self.linear_2(nn.functional.silu(self.linear_1(embedding)))


class LocalDiT(nn.Module):
    """The diffusion transformer: velocity of a noisy patch, given the LM condition, the time and the previous patch."""

    def __init__(self, t: Transformer, feat_dim: int, patch_size: int, mu_tokens: int) -> None:
        super().__init__()
        self.patch_size, self.mu_tokens, self.width = patch_size, mu_tokens, t.hidden_size
        self.in_proj = nn.Linear(feat_dim, t.hidden_size)
        self.cond_proj = nn.Linear(feat_dim, t.hidden_size)
        self.out_proj = nn.Linear(t.hidden_size, feat_dim)
        self.time_mlp = TimestepMLP(t.hidden_size)
        self.delta_time_mlp = TimestepMLP(t.hidden_size)
        # The time is a separate token only if there are several mu tokens.
        self.length = mu_tokens + (mu_tokens > 1) + 2 * patch_size
        self.decoder = Stack(t, self.length)

    def forward(
        self,
        x: Tensor,
        mu: Tensor,
        t_embedding: Tensor,
        cond: Tensor,
        dt_embedding: Tensor,
        rope: Rope,
    ) -> Tensor:
        """x, cond (N, feat_dim, P); mu (N, mu_tokens·hidden) -> velocity (N, feat_dim, P).

        t_embedding, dt_embedding (N, hidden): sine and cosine of the time and of the step's length. Their
        angles reach 1000 rad, which fp16 cannot represent, so they are computed outside.
        One mu token is added to the time token (0.5B, 1.5); two precede it (VoxCPM2).
        """
        return self.at_time(x, mu, self.time(t_embedding, dt_embedding), cond, rope)

    def time(self, t_embedding: Tensor, dt_embedding: Tensor) -> Tensor:
        """The time token (N, hidden) of embeddings (N, hidden)."""
        return self.time_mlp(t_embedding) + self.delta_time_mlp(dt_embedding)

    def at_time(self, x: Tensor, mu: Tensor, time: Tensor, cond: Tensor, rope: Rope) -> Tensor:
        """What `forward` returns, for a time token (N, hidden)."""
        time = time.unsqueeze(1)
        tokens = mu.reshape(-1, self.mu_tokens, self.width)
        prefix = [tokens + time] if self.mu_tokens == 1 else [tokens, time]
        sequence = (*prefix, self.cond_proj(cond.transpose(1, 2)), self.in_proj(x.transpose(1, 2)))
        hidden = self.decoder(torch.cat(sequence, dim=1), rope, keep=slice(-self.patch_size, None))
        return self.out_proj(hidden).transpose(1, 2)


class ScalarQuantizer(nn.Module):
    """Finite scalar quantisation between two projections (upstream `modules/layers/scalar_quantization_layer.py`)."""

    def __init__(self, hidden: int, latent: int, scale: int) -> None:
        super().__init__()
        self.scale = scale
        self.in_proj = nn.Linear(hidden, latent)
        self.out_proj = nn.Linear(latent, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, S, hidden) -> (B, S, hidden)."""
        return self.out_proj(torch.round(torch.tanh(self.in_proj(x)) * self.scale) / self.scale)
