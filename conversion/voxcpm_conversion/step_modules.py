"""The six step models as torch modules. Inputs and outputs are plain tensors, in the order of their declaration.

Shapes below: S embeddings, T patches, P frames per patch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from voxcpm_constants import step_models as names
from voxcpm_constants.architecture import Architecture, Transformer
from voxcpm_constants.step_models import ATTENTION, PART_OUTPUT, StepModel, StepSizes, TensorSpec, layers
from voxcpm_constants.targets import StateForm
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.modules.audio_vae import Contexts, Decoder, Encoder
from voxcpm_conversion.modules.local_transformers import LocalDiT, LocalEncoder, ScalarQuantizer
from voxcpm_conversion.modules.minicpm4 import (
    MASKED,
    LayerPast,
    Past,
    PastTogether,
    ReadOnlyPast,
    Rope,
    Stack,
    WatchedPast,
    rope_table,
)
from voxcpm_conversion.modules.voxcpm import VoxCPMModules, empty_modules


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
    """A stack's rotary table, as constants of its step model."""

    def __init__(self, a: Architecture, t: Transformer, length: int) -> None:
        super().__init__()
        table = rope_table(a.lm_config, t.head_dim, length)
        self.cos, self.sin = (nn.Buffer(half, persistent=False) for half in table)

    def all(self) -> Rope:
        return self.cos, self.sin

    def at(self, positions: Tensor) -> Rope:
        return self.cos[positions], self.sin[positions]


class FeatEncoderStep(nn.Module):
    """The local encoder and its projection to the base LM's width."""

    def __init__(
        self, encoder: LocalEncoder, projection: nn.Linear, a: Architecture, utterances: int = 1
    ) -> None:
        super().__init__()
        self.encoder, self.projection, self.utterances = encoder, projection, utterances
        self.rope = _Rope(a, a.feat_encoder, a.patch_size + 1)

    def forward(self, patches: Tensor) -> Tensor:
        """patches (1, T, P, latent_dim) -> embeddings (1, T, hidden); or several utterances with a patch each."""
        if self.utterances > 1:
            return self.projection(self.encoder(patches.transpose(0, 1), self.rope.all())).transpose(0, 1)
        return self.projection(self.encoder(patches, self.rope.all()))


class CachedStack(nn.Module):
    """A language model, or some of its layers, with explicit caches: the common part of both LM steps.

    Hardware rejects a `select` that broadcasts, and tensors whose shape is computed (`shape`, `range_1d`): masks are
    products, and positions are counted from the embeddings themselves (TRIALS.md, trodden-path).
    """

    past: type[Past] = Past
    """The form in which attention to the caches is computed."""

    def __init__(
        self,
        stack: Stack,
        a: Architecture,
        t: Transformer,
        sizes: StepSizes,
        declared: StepModel,
        state: StateForm,
    ) -> None:
        super().__init__()
        own = layers(declared)
        self.layers = stack.layers[own.start : own.stop]
        self.norm = stack.norm if own.stop == len(stack.layers) else nn.Identity()
        self.returns_rows = state == "rows"
        watched = sizes.alignment if declared.outputs[-1].name == ATTENTION else ()
        self.watched = [[h.head for h in watched if h.layer == layer] for layer in own]
        self.transformer, self.groups = t, t.num_heads // t.num_kv_heads
        lengths, (self.utterances, *_) = declared.chunk_lengths, declared.inputs[0].shape_at(0)
        self.stacks = [keys.shape_at(0)[0] // self.utterances for keys in declared.state[::2]]
        self.stacked = max(self.stacks) > 1
        self.one_length = len(lengths) == 1
        self.rope = _Rope(a, t, sizes.kv_length) if t.use_rope else None
        self.cache_positions = nn.Buffer(torch.arange(sizes.kv_length, dtype=torch.int32), persistent=False)
        if self.utterances > 1:  # Indices of an utterance and of a head, at every pair of both
            axes = map(torch.arange, (self.utterances, t.num_kv_heads))
            self.grid = nn.Buffer(torch.stack(torch.meshgrid(*axes, indexing="ij")), persistent=False)
        self.offsets = nn.Buffer(torch.arange(lengths[0], dtype=torch.int32), persistent=False)

    def forward(
        self, embeddings: Tensor, position: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, list[Tensor]]:
        """embeddings (1, S, hidden) -> hidden states (1, S, hidden), and the updated state or its new rows.

        position (1,): cache position of the first embedding. state: keys and values of each layer in turn. If heads are
        watched, their `ATTENTION` comes before the state. Several utterances have one embedding each, at positions of
        their own: (utterances, 1, hidden), (utterances,).
        """
        positions = position + self._offsets(embeddings)
        caches = list(zip(state[::2], state[1::2], strict=True))
        if self.stacked:
            caches = [layer for k, v in caches for layer in zip(k.split(1), v.split(1), strict=True)]
        new_rows: list[Tensor] = []
        pasts: list[Past | ReadOnlyPast]
        if self.utterances > 1:
            places, kv_heads = positions.long(), self.grid[1]
            cells = self.grid[0], kv_heads, places[:, None] + kv_heads * 0
            positions = positions[:, None, None]
            mask = _masked(self.cache_positions > positions[..., None], embeddings.dtype)
            pasts = [PastTogether(cached, places, mask, self.utterances, cells) for cached in caches]
        elif self.returns_rows:
            rows = torch.cat([positions] * self.groups)
            mask = _masked(self.cache_positions >= position, embeddings.dtype)
            own_mask = _masked(positions[..., None, :] > rows[..., None], embeddings.dtype)
            where = self.cache_positions, position
            pasts = [ReadOnlyPast(cached, mask, own_mask, *where) for cached in caches]
        else:
            rows = torch.cat([positions] * self.groups)
            mask = _masked(self.cache_positions > rows[..., None], embeddings.dtype)
            # A name for the places would be one in the program, too, and change its bytes.
            form = partial(LayerPast, rows=new_rows) if self.stacked else self.past
            pasts = [form(cached, positions.long(), mask) for cached in caches]
        rope = None if self.rope is None else self.rope.at(positions)
        hidden, presents = embeddings, []
        watched: list[Tensor] = []
        for layer, past, heads in zip(self.layers, pasts, self.watched, strict=True):
            seen = WatchedPast(past, heads, self.transformer, watched, self.utterances) if heads else past
            hidden, present = layer(hidden, rope, seen)
            presents += present
        attention = [torch.cat(watched, dim=2)] if watched else []
        if self.stacked:
            keys, values = (torch.split(torch.cat(new_rows[kind::2]), self.stacks) for kind in (0, 1))
            rows_of = [rows for pair in zip(keys, values, strict=True) for rows in pair]
            presents = [s.index_copy_(2, positions.long(), r) for s, r in zip(state, rows_of, strict=True)]
        return self.norm(hidden), attention + presents

    def _offsets(self, embeddings: Tensor) -> Tensor:
        """0, 1, … S - 1, as int32."""
        if self.one_length:
            return self.offsets
        ones = (embeddings[0, :, 0] * 0.0 + 1.0).int()
        return torch.cumsum(ones, 0, dtype=torch.int32) - 1


def _masked(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where false, MASKED where true."""
    return hidden.to(dtype) * MASKED


class BaseLMStep(nn.Module):
    """The base language model, the scalar quantiser and the stop head."""

    def __init__(
        self, lm: CachedStack, quantizer: ScalarQuantizer, stop_proj: nn.Linear, stop_head: nn.Linear
    ) -> None:
        super().__init__()
        self.lm, self.quantizer, self.stop_proj, self.stop_head = lm, quantizer, stop_proj, stop_head

    def forward(self, embeddings: Tensor, position: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """hidden and fsq_hidden (1, S, hidden), stop_logits (1, S, 2), the updated state; inputs: `CachedStack`."""
        hidden, updated = self.lm(embeddings, position, state)
        quantized = self.quantizer(hidden)
        stop_logits = self.stop_head(nn.functional.silu(self.stop_proj(quantized)))
        return hidden, quantized, stop_logits, *updated


class LMStep(nn.Module):
    """Layers of a language model only: the residual language model, or a part of the base one."""

    def __init__(self, lm: CachedStack) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, embeddings: Tensor, position: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """hidden (1, S, hidden), then the updated state; inputs: `CachedStack`."""
        hidden, updated = self.lm(embeddings, position, state)
        return hidden, *updated


class LocDiTStep(nn.Module):
    """One evaluation of the local DiT, for the conditional and the unconditional row."""

    def __init__(self, dit: LocalDiT, a: Architecture) -> None:
        super().__init__()
        self.dit = dit
        self.rope = _Rope(a, a.locdit, dit.length)

    def forward(
        self, x: Tensor, mu: Tensor, t_embedding: Tensor, cond: Tensor, dt_embedding: Tensor
    ) -> Tensor:
        """x, cond (2, latent_dim, P); mu (2, mu_size); embeddings (2, hidden) -> velocity (2, latent_dim, P)."""
        return self.dit(x, mu, t_embedding, cond, dt_embedding, self.rope.all())


class LocDiTSolve(nn.Module):
    """All Euler steps of a patch, with classifier-free guidance and CFG-zero* (upstream `locdit/unified_cfm.py`).

    The same loop as the runtime's `flow_matching.solve`. The first steps, with zero velocity, are skipped.
    """

    def __init__(self, step: LocDiTStep, width: int) -> None:
        super().__init__()
        self.step = step
        # Without a mean mode, the step length that the DiT gets is zero: sines of 0, cosines of 1.
        self.delta = nn.Buffer(torch.arange(width)[None].ge(width // 2).float(), persistent=False)
        self.smallest_peak = nn.Buffer(torch.tensor([1e-3]), persistent=False)
        # Far below the mean square of values whose largest magnitude is 1; it matters only where all are zero.
        self.smallest_square = nn.Buffer(torch.tensor([1e-4]), persistent=False)

    def forward(
        self,
        noise: Tensor,
        mu: Tensor,
        cond: Tensor,
        t_embeddings: Tensor,
        step_lengths: Tensor,
        cfg_value: Tensor,
    ) -> Tensor:
        """noise, cond (1, latent_dim, P); mu (1, mu_size); t_embeddings (n, hidden); step_lengths (n,) -> as noise."""
        x, both, conds = noise, torch.cat((mu, mu * 0.0)), torch.cat((cond, cond))
        dit, rope = self.step.dit, self.step.rope.all()
        # One product for all times, which are known before the first step.
        times = dit.time(t_embeddings, self.delta)
        for index in range(len(t_embeddings)):
            time = times[index : index + 1]
            velocities = dit.at_time(torch.cat((x, x)), both, torch.cat((time, time)), conds, rope)
            x = x - step_lengths[index : index + 1] * self._guided(velocities[:1], velocities[1:], cfg_value)
        return x

    def _guided(self, conditional: Tensor, unconditional: Tensor, cfg_value: Tensor) -> Tensor:
        """The unconditional velocity times <v+, v-> / |v-|², and from there towards the conditional one.

        Both sums are of v- over its largest magnitude, so that squares stay within fp16.
        """
        peak = torch.maximum(unconditional.abs().amax(dim=(1, 2), keepdim=True), self.smallest_peak)
        y = unconditional / peak
        square = torch.maximum((y * y).mean(dim=(1, 2), keepdim=True), self.smallest_square)
        start = y * ((conditional * y).mean(dim=(1, 2), keepdim=True) / square)
        return start + cfg_value * (conditional - start)


class WithState(nn.Module):
    """A step module whose state tensors are buffers, which become Core ML states, instead of inputs and outputs."""

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


def build_step(
    declared: StepModel,
    modules: VoxCPMModules,
    a: Architecture,
    sizes: StepSizes,
    state: StateForm = "passed",
) -> nn.Module:
    """A step model, a part of one or one function of it, with the parameters of `modules`.

    These may still be on the meta device. state: only "rows" makes a difference here.
    """

    def language_model(stack: Stack, t: Transformer) -> CachedStack:
        return CachedStack(stack, a, t, sizes, declared, state)

    def base_lm() -> nn.Module:
        lm = language_model(modules.base_lm, a.base_lm)
        if declared.outputs[0].name == PART_OUTPUT:
            return LMStep(lm)
        return BaseLMStep(lm, modules.fsq_layer, modules.stop_proj, modules.stop_head)

    def locdit() -> LocDiTStep:
        return LocDiTStep(modules.feat_decoder.estimator, a)

    builders: dict[str, Callable[[], nn.Module]] = {
        names.AUDIO_VAE_ENCODER: lambda: AudioVAEStep(modules.audio_vae.encoder),
        names.AUDIO_VAE_DECODER: lambda: AudioVAEStep(modules.audio_vae.decoder),
        names.FEAT_ENCODER: lambda: FeatEncoderStep(
            modules.feat_encoder, modules.enc_to_lm_proj, a, declared.inputs[0].shape_at(0)[0]
        ),
        names.BASE_LM_STEP: base_lm,
        names.RESIDUAL_LM_STEP: lambda: LMStep(language_model(modules.residual_lm, a.residual_lm)),
        names.LOCDIT_STEP: locdit,
        names.LOCDIT_SOLVE: lambda: LocDiTSolve(locdit(), a.dit_config.hidden_dim),
    }
    # A part's name begins with that of its step model.
    build = next(build for name, build in builders.items() if declared.name.startswith(name))
    return build().eval().requires_grad_(False)


def example_inputs(tensors: Iterable[TensorSpec], chunk: int) -> tuple[Tensor, ...]:
    """Zeros of the declared shapes, with enumerated axes at their `chunk`-th length."""
    dtypes = {"float32": torch.float32, "int32": torch.int32, "compute": torch.float32}
    return tuple(torch.zeros(t.shape_at(chunk), dtype=dtypes[t.dtype]) for t in tensors)


def loaded_modules(checkpoint: Checkpoint, declared: StepModel, sizes: StepSizes) -> VoxCPMModules:
    """All modules on the meta device, except those of one step model, which have their weights in float32."""
    modules = empty_modules(checkpoint.architecture)
    names = {id(parameter): name for name, parameter in modules.named_parameters()}
    step = build_step(declared, modules, checkpoint.architecture, sizes)
    weights = {names[id(p)]: checkpoint.tensor(names[id(p)]) for p in step.parameters()}
    modules.load_state_dict(weights, strict=False, assign=True)
    return modules
