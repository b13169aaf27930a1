"""The six step models as torch modules: flat tensors in, flat tensors out, in the order of their declaration."""

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
    """Either half of the AudioVAE: a chunk and the contexts before it -> its result and the contexts after it."""

    def __init__(self, half: Encoder | Decoder) -> None:
        super().__init__()
        self.network = half

    def forward(self, chunk: Tensor, *before: Tensor) -> tuple[Tensor, ...]:
        contexts = Contexts(before)
        return self.network(chunk, contexts), *contexts.after


class _Rope(nn.Module):
    """A stack's rotary table as constants of its step model."""

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
    def __init__(self, encoder: LocalEncoder, projection: nn.Linear, a: Architecture) -> None:
        super().__init__()
        self.encoder, self.projection = encoder, projection
        self.rope = _Rope(a, a.feat_encoder, a.patch_size + 1)

    def forward(self, patches: Tensor) -> Tensor:
        return self.projection(self.encoder(patches, self.rope.all()))


class _CachedStack(nn.Module):
    """A language model over explicit caches: what the two LM steps share."""

    cache_positions: Tensor
    cache_starts: Tensor

    def __init__(self, stack: Stack, a: Architecture, t: Transformer, sizes: StepSizes) -> None:
        super().__init__()
        self.stack, self.batch = stack, sizes.batch
        self.rope = _Rope(a, t, sizes.kv_length) if t.use_rope else None
        positions = torch.arange(sizes.kv_length)
        starts = sizes.kv_length * torch.arange(sizes.batch)[:, None, None]
        self.register_buffer("cache_positions", positions, persistent=False)
        self.register_buffer("cache_starts", starts, persistent=False)

    def forward(
        self, embeddings: Tensor, position: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, list[Tensor]]:
        """embeddings (B, S, hidden) at positions position + (0 .. S-1); state: keys and values, layer by layer."""
        if self.batch == 1:
            places = positions = position.long() + torch.arange(embeddings.size(1))
            visible = self.cache_positions <= positions[:, None]
        else:
            # (B, S, 1): the last axis is that of the heads.
            positions = position.long()[:, None, None] + torch.arange(embeddings.size(1))[:, None]
            places = (self.cache_starts + positions).reshape(-1)
            visible = self.cache_positions <= positions[..., None]
        mask = torch.where(visible, 0.0, MASKED)
        rope = None if self.rope is None else self.rope.at(positions)
        caches = zip(state[::2], state[1::2], strict=True)
        pasts = [Past(cached, places, mask, self.batch) for cached in caches]
        hidden, updated = self.stack.step(embeddings, rope, pasts)
        return hidden, [tensor for cached in updated for tensor in cached]


class BaseLMStep(nn.Module):
    def __init__(
        self, lm: _CachedStack, quantizer: ScalarQuantizer, stop_proj: nn.Linear, stop_head: nn.Linear
    ) -> None:
        super().__init__()
        self.lm, self.quantizer, self.stop_proj, self.stop_head = lm, quantizer, stop_proj, stop_head

    def forward(self, embeddings: Tensor, position: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        hidden, updated = self.lm(embeddings, position, state)
        quantized = self.quantizer(hidden)
        stop_logits = self.stop_head(nn.functional.silu(self.stop_proj(quantized)))
        return hidden, quantized, stop_logits, *updated


class ResidualLMStep(nn.Module):
    def __init__(self, lm: _CachedStack) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, embeddings: Tensor, position: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        hidden, updated = self.lm(embeddings, position, state)
        return hidden, *updated


class LocDiTStep(nn.Module):
    def __init__(self, dit: LocalDiT, a: Architecture) -> None:
        super().__init__()
        self.dit = dit
        self.rope = _Rope(a, a.locdit, dit.length)

    def forward(self, x: Tensor, mu: Tensor, t: Tensor, cond: Tensor, dt: Tensor) -> Tensor:
        return self.dit(x, mu, t, cond, dt, self.rope.all())


class WithState(nn.Module):
    """A step that keeps its state: buffers, which become Core ML states, in place of inputs and outputs."""

    def __init__(self, step: nn.Module, declaration: StepModel) -> None:
        super().__init__()
        self.step = step
        self.outputs = len(declaration.outputs)
        self.names = [tensor.name for tensor in declaration.state]
        for tensor in declaration.state:
            self.register_buffer(tensor.name, torch.zeros(tensor.shape_at(0)), persistent=False)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
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
    """The step model `name` over `modules`' parameters, which may still be on the meta device."""
    return STEP_BUILDERS[name](modules, a, sizes).eval().requires_grad_(False)


def step_parameter_names(name: str, modules: VoxCPMModules, a: Architecture, sizes: StepSizes) -> list[str]:
    """Checkpoint names of the weights that a step model reads."""
    qualified = {id(parameter): key for key, parameter in modules.named_parameters()}
    return [qualified[id(p)] for p in build_step(name, modules, a, sizes).parameters() if p is not None]


def example_inputs(tensors: Iterable[TensorSpec], chunk: int) -> tuple[Tensor, ...]:
    """Zeros of the declared shapes at the `chunk`-th enumerated length."""
    dtypes = {"float32": torch.float32, "int32": torch.int32, "compute": torch.float32}
    return tuple(torch.zeros(t.shape_at(chunk), dtype=dtypes[t.dtype]) for t in tensors)
