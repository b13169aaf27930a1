"""VoxCPM's language models, local encoder and local DiT for training, with upstream's parameter names.

Sequences are padded at their end and attention is causal, so that no mask is needed. Local encoder, DiT, quantiser and
heads are computed at audio positions only.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """Root mean square norm over the last axis."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, length, size) -> the same shape."""
        return F.rms_norm(x, (x.size(-1),), self.weight.to(x.dtype), 1e-5)


class Attention(nn.Module):
    """Grouped-query attention with heads of `width` dimensions."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.q_proj = nn.Linear(hidden, heads * width, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * width, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * width, bias=False)
        self.o_proj = nn.Linear(heads * width, hidden, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], *, causal: bool) -> Tensor:
        """x (batch, length, hidden) -> the same shape. rope: cos and sin, each (length, width)."""
        batch, length, _ = x.shape
        q, k, v = (
            projection(x).view(batch, length, -1, self.width).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = _rotate(q, rope), _rotate(k, rope)
        groups = q.size(1) // k.size(1)
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (table.to(x.dtype) for table in rope)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class MLP(nn.Module):
    """The gated feed-forward block: down(silu(gate(x)) · up(x))."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, length, hidden) -> the same shape."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feed-forward block, each after a norm and with a residual connection."""

    def __init__(self, hidden: int, inner: int, heads: int, kv_heads: int, width: int) -> None:
        super().__init__()
        self.self_attn = Attention(hidden, heads, kv_heads, width)
        self.mlp = MLP(hidden, inner)
        self.input_layernorm = RMSNorm(hidden)
        self.post_attention_layernorm = RMSNorm(hidden)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], *, causal: bool) -> Tensor:
        """x (batch, length, hidden) -> the same shape. rope: cos and sin, each (length, width)."""
        x = x + self.self_attn(self.input_layernorm(x), rope, causal=causal)
        return x + self.mlp(self.post_attention_layernorm(x))


class Stack(nn.Module):
    """MiniCPM4's layers and final norm, with an embedding table if `vocabulary` is not 0."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self, config: dict[str, Any], sizes: dict[str, Any] | None = None, *, vocabulary: int = 0
    ) -> None:
        super().__init__()
        own = sizes or {}
        hidden = own.get("hidden_dim", config["hidden_size"])
        inner = own.get("ffn_dim", config["intermediate_size"])
        heads = own.get("num_heads", config["num_attention_heads"])
        width = config["kv_channels"]
        if vocabulary:
            self.embed_tokens = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(
            Layer(hidden, inner, heads, config["num_key_value_heads"], width)
            for _ in range(own.get("num_layers", config["num_hidden_layers"]))
        )
        self.norm = RMSNorm(hidden)
        frequencies = config["rope_theta"] ** -(torch.arange(0, width, 2).float() / width)
        angles = torch.outer(torch.arange(config["max_position_embeddings"]).float(), frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor, *, causal: bool) -> Tensor:
        """x (batch, length, hidden) -> the same shape."""
        rope = (self.cos[: x.size(1)], self.sin[: x.size(1)])
        for layer in self.layers:
            x = layer(x, rope, causal=causal)
        return self.norm(x)


class LocalEncoder(nn.Module):
    """A transformer from a patch of latent frames to one vector: the output at a learned first token."""

    def __init__(self, lm: dict[str, Any], sizes: dict[str, Any], latent: int) -> None:
        super().__init__()
        self.special_token = nn.Parameter(torch.randn(1, 1, 1, sizes["hidden_dim"]))
        self.in_proj = nn.Linear(latent, sizes["hidden_dim"])
        self.encoder = Stack(lm, sizes)

    def forward(self, patches: Tensor) -> Tensor:
        """patches (N, frames, latent) -> (N, hidden)."""
        frames = self.in_proj(patches)
        token = self.special_token[0].to(frames.dtype).expand(frames.size(0), 1, -1)
        return self.encoder(torch.cat((token, frames), dim=1), causal=False)[:, 0]


class TimestepMLP(nn.Module):
    """The embedding of a time: sines and cosines, then two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(width, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, t: Tensor) -> Tensor:
        """t (N,) -> (N, width). The angles are 1000·t at geometric frequencies."""
        half = self.linear_1.in_features // 2
        frequencies = torch.exp(torch.arange(half, device=t.device) * -(math.log(10000) / (half - 1)))
        angles = 1000 * t[:, None] * frequencies[None]
        return self.linear_2(F.silu(self.linear_1(torch.cat((angles.sin(), angles.cos()), dim=-1))))


class LocalDiT(nn.Module):
    """The diffusion transformer: velocity of a noisy patch, given the LM condition, the time and the previous patch."""

    def __init__(self, lm: dict[str, Any], sizes: dict[str, Any], latent: int) -> None:
        super().__init__()
        width = sizes["hidden_dim"]
        self.in_proj = nn.Linear(latent, width)
        self.cond_proj = nn.Linear(latent, width)
        self.out_proj = nn.Linear(width, latent)
        self.time_mlp = TimestepMLP(width)
        self.delta_time_mlp = TimestepMLP(width)
        self.decoder = Stack(lm, sizes)

    def forward(self, x: Tensor, mu: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        """x, condition (N, frames, latent); mu (N, width); t (N,) -> velocity (N, frames, latent)."""
        time = self.time_mlp(t) + self.delta_time_mlp(torch.zeros_like(t))
        tokens = torch.cat(((mu + time)[:, None], self.cond_proj(condition), self.in_proj(x)), dim=1)
        return self.out_proj(self.decoder(tokens, causal=False)[:, -x.size(1) :])


class ScalarQuantizer(nn.Module):
    """Finite scalar quantisation between two projections (upstream `modules/layers/scalar_quantization_layer.py`)."""

    def __init__(self, hidden: int, latent: int, scale: int) -> None:
        super().__init__()
        self.scale = scale
        self.in_proj = nn.Linear(hidden, latent)
        self.out_proj = nn.Linear(latent, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, hidden) -> the same shape. The backward pass ignores the rounding (straight-through gradient)."""
        y = torch.tanh(self.in_proj(x))
        return self.out_proj(y + ((y * self.scale).round() / self.scale - y).detach())


class VoxCPM(nn.Module):
    """All modules with parameters in model.safetensors. It has no `forward`."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        lm, dit, encoder = config["lm_config"], config["dit_config"], config["encoder_config"]
        hidden, latent = lm["hidden_size"], config["feat_dim"]
        self.base_lm = Stack(lm, vocabulary=lm["vocab_size"])
        self.residual_lm = Stack(lm, {"num_layers": config["residual_lm_num_layers"]})
        self.feat_encoder = LocalEncoder(lm, encoder, latent)
        self.feat_decoder = nn.ModuleDict({"estimator": LocalDiT(lm, dit, latent)})
        self.fsq_layer = ScalarQuantizer(
            hidden, config["scalar_quantization_latent_dim"], config["scalar_quantization_scale"]
        )
        self.enc_to_lm_proj = nn.Linear(encoder["hidden_dim"], hidden)
        self.lm_to_dit_proj = nn.Linear(hidden, dit["hidden_dim"])
        self.res_to_dit_proj = nn.Linear(hidden, dit["hidden_dim"])
        self.stop_proj = nn.Linear(hidden, hidden)
        self.stop_head = nn.Linear(hidden, 2, bias=False)
        self.apply(_initialise)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(
            module.weight, std=0.02 if isinstance(module, nn.Embedding) else module.in_features**-0.5 * 0.7
        )
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
