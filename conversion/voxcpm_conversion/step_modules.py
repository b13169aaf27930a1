"""The six step models as torch modules, whose inputs and outputs are plain tensors in the order of their declaration.

Shapes below: B utterances, S embeddings or T patches of each, P frames a patch, N = 2·B rows of the DiT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from voxcpm_constants import step_models as names
from voxcpm_constants.architecture import Architecture, Transformer
from voxcpm_constants.step_models import StepModel, StepSizes, TensorSpec
from voxcpm_conversion.modules.audio_vae import Contexts, Decoder, Encoder
from voxcpm_conversion.modules.local_transformers import LocalDiT, LocalEncoder, ScalarQuantizer
from voxcpm_conversion.modules.minicpm4 import MASKED, Past, Rope, Stack, rope_table
from voxcpm_conversion.modules.voxcpm import VoxCPMModules


class AudioVAEStep(nn.Module):
    """One half of the AudioVAE, encoder or decoder, applied to a chunk of the signal."""

    def __init__(self, half: Encoder | Decoder) -> None:
        super().__init__()
        self.network = half

    def forward(self, chunk: Tensor, *before: Tensor) -> tuple[Tensor, ...]:
        """The chunk's result, then the left contexts after the chunk.

        chunk: audio (1, 1, samples) or latents (1, latent_dim, frames); the result is the other one.
        before: the left contexts before the chunk, each (1, channels, width).
        """
        contexts = Contexts(before)
        return self.network(chunk, contexts), *contexts.after


class _Rope(nn.Module):
    """The rotary table of a stack, as constants of its step model."""

    cos: Tensor
    sin: Tensor

    def __init__(self, a: Architecture, t: Transformer, length: int) -> None:
        super().__init__()
        cos, sin = rope_table(a.lm_config, t.head_dim, length)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def all(self) -> Rope:
        return self.cos, self.sin

    def at(self, positions: Tensor) -> Rope:
        return self.cos[positions], self.sin[positions]


class FeatEncoderStep(nn.Module):
    """The local encoder and its projection to the base LM's width."""

    def __init__(self, encoder: LocalEncoder, projection: nn.Linear, a: Architecture) -> None:
        super().__init__()
        self.encoder, self.projection = encoder, projection
        self.rope = _Rope(a, a.feat_encoder, a.patch_size + 1)

    def forward(self, patches: Tensor) -> Tensor:
        """patches (1, T, P, latent_dim) -> embeddings (1, T, hidden)."""
        return self.projection(self.encoder(patches, self.rope.all()))


class _CachedStack(nn.Module):
    """A language model with explicit caches, the common part of both LM steps.

    Hardware refuses a `select` that broadcasts, and tensors whose shape is a value (`shape`, `range_1d`): the mask is a
    product, and positions are counted from the embeddings themselves (TRIALS.md, "The trodden path").
    """

    cache_positions: Tensor
    cache_starts: Tensor
    offsets: Tensor

    def __init__(self, stack: Stack, a: Architecture, t: Transformer, sizes: StepSizes) -> None:
        super().__init__()
        self.stack, self.batch, self.groups = stack, sizes.batch, t.num_heads // t.num_kv_heads
        self.one_length = len(sizes.prefill_chunks) == 1
        self.rope = _Rope(a, t, sizes.kv_length) if t.use_rope else None
        positions = torch.arange(sizes.kv_length, dtype=torch.int32)
        starts = sizes.kv_length * torch.arange(sizes.batch, dtype=torch.int32)[:, None]
        offsets = torch.arange(sizes.prefill_chunks[0], dtype=torch.int32)
        self.register_buffer("cache_positions", positions, persistent=False)
        self.register_buffer("cache_starts", starts, persistent=False)
        self.register_buffer("offsets", offsets, persistent=False)

    def forward(
        self, embeddings: Tensor, position: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, list[Tensor]]:
        """embeddings (B, S, hidden) -> hidden states (B, S, hidden), and the updated state.

        position (B,): cache position of each utterance's first embedding. state: keys and values of each layer in turn.
        """
        if self.batch == 1:
            places = positions = position + self._offsets(embeddings)
            rows = torch.cat([positions] * self.groups)
            turned = positions
        else:
            positions = position[:, None] + self._offsets(embeddings)
            places = (self.cache_starts + positions).reshape(-1)
            rows = torch.stack([positions] * self.groups, dim=-1).reshape(self.batch, -1)
            # The last axis broadcasts over the heads.
            turned = positions[..., None]
        mask = (self.cache_positions > rows[..., None]).float() * MASKED
        rope = None if self.rope is None else self.rope.at(turned)
        caches = zip(state[::2], state[1::2], strict=True)
        pasts = [Past(cached, places.long(), mask, self.batch) for cached in caches]
        hidden, updated = self.stack.step(embeddings, rope, pasts)
        return hidden, [tensor for cached in updated for tensor in cached]

    def _offsets(self, embeddings: Tensor) -> Tensor:
        """0, 1, … S - 1, as int32."""
        if self.one_length:
            return self.offsets
        ones = (embeddings[0, :, 0] * 0.0 + 1.0).int()
        return torch.cumsum(ones, 0, dtype=torch.int32) - 1


class BaseLMStep(nn.Module):
    """The base language model, the scalar quantiser and the stop head."""

    def __init__(
        self, lm: _CachedStack, quantizer: ScalarQuantizer, stop_proj: nn.Linear, stop_head: nn.Linear
    ) -> None:
        super().__init__()
        self.lm, self.quantizer, self.stop_proj, self.stop_head = lm, quantizer, stop_proj, stop_head

    def forward(self, embeddings: Tensor, position: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """hidden and fsq_hidden (B, S, hidden), stop_logits (B, S, 2), then the updated state.

        embeddings (B, S, hidden); position (B,); state: keys and values of each layer in turn.
        """
        hidden, updated = self.lm(embeddings, position, state)
        quantized = self.quantizer(hidden)
        stop_logits = self.stop_head(nn.functional.silu(self.stop_proj(quantized)))
        return hidden, quantized, stop_logits, *updated


class ResidualLMStep(nn.Module):
    """The residual language model."""

    def __init__(self, lm: _CachedStack) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, embeddings: Tensor, position: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """hidden (B, S, hidden), then the updated state.

        embeddings (B, S, hidden); position (B,); state: keys and values of each layer in turn.
        """
        hidden, updated = self.lm(embeddings, position, state)
        return hidden, *updated


class LocDiTStep(nn.Module):
    """One evaluation of the local DiT, for the conditional and the unconditional row of each utterance."""

    def __init__(self, dit: LocalDiT, a: Architecture) -> None:
        super().__init__()
        self.dit = dit
        self.rope = _Rope(a, a.locdit, dit.length)

    def forward(
        self, x: Tensor, mu: Tensor, t_embedding: Tensor, cond: Tensor, dt_embedding: Tensor
    ) -> Tensor:
        """x, cond (N, latent_dim, P); mu (N, mu_size); embeddings (N, hidden) -> velocity (N, latent_dim, P)."""
        return self.dit(x, mu, t_embedding, cond, dt_embedding, self.rope.all())


class WithState(nn.Module):
    """A step module whose state tensors are buffers, which become Core ML states, and not inputs and outputs."""

    def __init__(self, step: nn.Module, declaration: StepModel) -> None:
        super().__init__()
        self.step = step
        self.outputs = len(declaration.outputs)
        self.names = [tensor.name for tensor in declaration.state]
        for tensor in declaration.state:
            self.register_buffer(tensor.name, torch.zeros(tensor.shape_at(0)), persistent=False)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The declared outputs for the declared inputs."""
        results: tuple[Tensor, ...] = self.step(*inputs, *(getattr(self, name) for name in self.names))
        return results[: self.outputs]


StepBuilder = Callable[[VoxCPMModules, Architecture, StepSizes], nn.Module]

STEP_BUILDERS: dict[str, StepBuilder] = {
    names.AUDIO_VAE_ENCODER: lambda m, a, sizes: AudioVAEStep(m.audio_vae.encoder),
    names.AUDIO_VAE_DECODER: lambda m, a, sizes: AudioVAEStep(m.audio_vae.decoder),
    names.FEAT_ENCODER: lambda m, a, sizes: FeatEncoderStep(m.feat_encoder, m.enc_to_lm_proj, a),
    names.BASE_LM_STEP: lambda m, a, sizes: BaseLMStep(
        _CachedStack(m.base_lm, a, a.base_lm, sizes), m.fsq_layer, m.stop_proj, m.stop_head
    ),
    names.RESIDUAL_LM_STEP: lambda m, a, sizes: ResidualLMStep(
        _CachedStack(m.residual_lm, a, a.residual_lm, sizes)
    ),
    names.LOCDIT_STEP: lambda m, a, sizes: LocDiTStep(m.feat_decoder.estimator, a),
}


def build_step(name: str, modules: VoxCPMModules, a: Architecture, sizes: StepSizes) -> nn.Module:
    """The step model `name` with the parameters of `modules`, which may still be on the meta device."""
    return STEP_BUILDERS[name](modules, a, sizes).eval().requires_grad_(False)


def step_parameter_names(name: str, modules: VoxCPMModules, a: Architecture, sizes: StepSizes) -> list[str]:
    """Names, in a checkpoint, of the weights that a step model uses."""
    qualified = {id(parameter): key for key, parameter in modules.named_parameters()}
    return [qualified[id(p)] for p in build_step(name, modules, a, sizes).parameters() if p is not None]


def example_inputs(tensors: Iterable[TensorSpec], chunk: int) -> tuple[Tensor, ...]:
    """Zeros of the declared shapes, with enumerated axes at their `chunk`-th length."""
    dtypes = {"float32": torch.float32, "int32": torch.int32, "compute": torch.float32}
    return tuple(torch.zeros(t.shape_at(chunk), dtype=dtypes[t.dtype]) for t in tensors)
