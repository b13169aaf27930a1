"""Reference calls for each step model: inputs and outputs of upstream's fp32 modules on a real utterance.

Upstream speaks the utterance; its latents, waveform and DiT calls are recorded. Upstream's language models process the
whole sequence in one causal pass. The reference is split into prefill chunks and single steps, so that agreement at a
late position shows that the cache was written and read correctly at all earlier ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

from voxcpm_constants import step_models as names
from voxcpm_constants import tokenizer_file
from voxcpm_constants.architecture import Architecture
from voxcpm_constants.step_models import StepModel, StepSizes, declare_step_models, encoder_patches
from voxcpm_runtime.audio.reading import resample
from voxcpm_runtime.backends.step_function import Floats
from voxcpm_runtime.model.flow_matching import euler_steps, time_embedding
from voxcpm_validation.default_text import DEFAULT_TEXT
from voxcpm_validation.upstream import upstream_generate, use_noise


@dataclass(frozen=True)
class RecordedCall:
    """One call of a step model: its inputs, and upstream's outputs. State is carried from call to call."""

    inputs: dict[str, npt.NDArray[Any]]
    outputs: dict[str, Floats]


@torch.inference_mode()
def record_reference(
    model: Any,
    a: Architecture,
    sizes: StepSizes,
    *,
    text: str = DEFAULT_TEXT,
    patches: int = 12,
    seed: int = 0,
) -> dict[str, list[RecordedCall]]:
    """Record calls of every step model, by name, in one utterance of `patches` patches by upstream's fp32 `model`.

    seed: that of the noise. A language model's calls start with the text's positions. Every length of every step model
    is called, all but the first with a non-empty state: if the utterance is too short, its patches are repeated, up to
    the length of the caches. With `sizes.solver_steps`, upstream's solver solves each patch again, in that many steps.
    """
    with _record_estimator(model, a.dit_config.hidden_dim) as dit_calls, _record_solves(model) as solves:
        audio, latents = upstream_generate(
            model, text, rng=np.random.default_rng(seed), min_len=patches, max_len=patches
        )
    tokens = torch.tensor([[*model.text_tokenizer(text), tokenizer_file.AUDIO_START]])
    chunks = {
        names.AUDIO_VAE_ENCODER: encoder_patches(a),
        names.AUDIO_VAE_DECODER: (1,),
        names.FEAT_ENCODER: sizes.encode_patches,
        names.BASE_LM_STEP: sizes.prefill_chunks,
        names.RESIDUAL_LM_STEP: sizes.prefill_chunks,
    }
    # Text positions come first, then one patch per unit, the last ones in single steps.
    texts = {name: tokens.size(1) if "lm" in name else 0 for name in chunks}
    single = {name: len(latents) if texts[name] else min(4, len(latents)) for name in chunks}
    units = {name: max(texts[name] + len(latents), sum(chunks[name]) + single[name]) for name in chunks}
    for name in (names.BASE_LM_STEP, names.RESIDUAL_LM_STEP):
        units[name] = min(units[name], sizes.kv_length)
    patches_of = {name: tile(latents, units[name] - texts[name]) for name in chunks}
    sequences = {
        names.AUDIO_VAE_ENCODER: _vae_encoder(
            model, a, tile(audio, units[names.AUDIO_VAE_ENCODER] * a.patch_output_samples)
        ),
        names.AUDIO_VAE_DECODER: _vae_decoder(model, patches_of[names.AUDIO_VAE_DECODER]),
        names.FEAT_ENCODER: _feat_encoder(model, patches_of[names.FEAT_ENCODER]),
        **_language_models(model, a, tokens, patches_of[names.BASE_LM_STEP], sizes),
    }
    declarations = declare_step_models(a, sizes)
    calls = {}
    for name, (inputs, outputs) in sequences.items():
        plan = split_plan(units[name], chunks[name], single[name])
        calls[name] = split_calls(declarations[name], inputs, outputs, plan)
    calls[names.LOCDIT_STEP] = dit_calls
    if sizes.solver_steps:
        calls[names.LOCDIT_SOLVE] = [_record_solve(model, a, solve, sizes.solver_steps) for solve in solves]
    return calls


def tile(values: Floats, length: int) -> Floats:
    """Repeat or truncate `values` to `length` along the first axis."""
    return np.resize(values, (length, *values.shape[1:]))


def split_plan(units: int, chunks: Sequence[int], single: int) -> list[int]:
    """Chunk lengths that add up to `units`; the last `single` are 1.

    First each length once, ascending, so that all but the first start with a non-empty state; then the largest fits.
    """
    plan: list[int] = []
    for length in sorted(chunks):
        if sum(plan) + length <= units - single:
            plan.append(length)
    while sum(plan) < units - single:
        plan.append(max(c for c in chunks if c <= units - single - sum(plan)))
    return plan + [1] * (units - sum(plan))


def split_calls(
    declaration: StepModel,
    inputs: Mapping[str, npt.NDArray[Any]],
    outputs: Mapping[str, Floats],
    plan: Sequence[int],
) -> list[RecordedCall]:
    """Split whole sequences into calls along time: the AudioVAE's last axis, the second axis of all others.

    plan: units (patches, or positions of a language model) of each call. `position`, if the declaration has it, is the
    number of units before the call.
    """
    axis = 2 if declaration.name in (names.AUDIO_VAE_ENCODER, names.AUDIO_VAE_DECODER) else 1

    def split(array: npt.NDArray[Any], start: int, length: int) -> npt.NDArray[Any]:
        unit = array.shape[axis] // sum(plan)
        return np.ascontiguousarray(np.take(array, range(start * unit, (start + length) * unit), axis))

    calls, start = [], 0
    for length in plan:
        chunk = {name: split(array, start, length) for name, array in inputs.items()}
        if declaration.has_caches:
            chunk["position"] = np.array([start], np.int32)
        expected = {
            name: split(array, start, length)
            for name, array in outputs.items()
            if name != names.ATTENTION or length == 1
        }
        calls.append(RecordedCall(chunk, expected))
        start += length
    return calls


Sequences = tuple[dict[str, Floats], dict[str, Floats]]


def _vae_encoder(model: Any, a: Architecture, audio: Floats) -> Sequences:
    at_input_rate = resample(audio, a.output_sample_rate, a.input_sample_rate)
    samples = len(at_input_rate) // a.patch_input_samples * a.patch_input_samples
    audible = at_input_rate[None, None, :samples]
    encoded = model.audio_vae.encode(torch.from_numpy(audible), a.input_sample_rate)
    return {"audio": audible}, {"latents": encoded.numpy()}


def _vae_decoder(model: Any, latents: Floats) -> Sequences:
    frames = latents.reshape(-1, latents.shape[-1]).T[None]
    return {"latents": frames}, {"audio": model.audio_vae.decode(torch.from_numpy(frames.copy())).numpy()}


def _feat_encoder(model: Any, latents: Floats) -> Sequences:
    embedded = model.enc_to_lm_proj(model.feat_encoder(torch.from_numpy(latents[None])))
    return {"patches": latents[None]}, {"embeddings": embedded.numpy()}


def _language_models(
    model: Any, a: Architecture, tokens: torch.Tensor, latents: Floats, sizes: StepSizes
) -> dict[str, Sequences]:
    embedded_text = model.base_lm.embed_tokens(tokens) * a.text_embedding_scale
    embedded_audio = model.enc_to_lm_proj(model.feat_encoder(torch.from_numpy(latents[None])))
    embeddings = torch.cat((embedded_text, embedded_audio), dim=1)
    is_audio = (torch.arange(embeddings.size(1)) >= tokens.size(1))[None, :, None]
    with _record_attention(sizes) as attention:
        hidden, _ = model.base_lm(inputs_embeds=embeddings, is_causal=True)
    quantized = model.fsq_layer(hidden)
    stop = model.stop_head(model.stop_actn(model.stop_proj(quantized)))
    selected, audible = torch.where(is_audio, quantized, hidden), embeddings * is_audio
    if a.traits.fuses_residual_input:
        residual_inputs = model.fusion_concat_proj(torch.cat((selected, audible), dim=-1))
    else:
        residual_inputs = selected + audible
    residual, _ = model.residual_lm(inputs_embeds=residual_inputs, is_causal=True)
    base_outputs = {"hidden": hidden.numpy(), "fsq_hidden": quantized.numpy(), "stop_logits": stop.numpy()}
    if attention:
        base_outputs[names.ATTENTION] = np.stack(attention, axis=2)
    return {
        names.BASE_LM_STEP: ({"embeddings": embeddings.numpy()}, base_outputs),
        names.RESIDUAL_LM_STEP: ({"embeddings": residual_inputs.numpy()}, {"hidden": residual.numpy()}),
    }


@contextmanager
def _record_attention(sizes: StepSizes) -> Iterator[list[Floats]]:
    """Record the attention of each alignment head (1, positions, cache positions).

    Upstream's layers call torch's fused attention one after another, and it returns no weights: from the queries and
    keys that it is given they are computed here.
    """
    rows: list[Floats] = []
    fused, layers = torch.nn.functional.scaled_dot_product_attention, itertools.count()

    def record(q: torch.Tensor, k: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
        layer = next(layers)
        for head in (h.head for h in sizes.alignment if h.layer == layer):
            scores = q[:, head] @ k[:, head * k.size(1) // q.size(1)].transpose(1, 2) * q.size(-1) ** -0.5
            causal = torch.full_like(scores, -torch.inf).triu(1)
            weights = torch.softmax(scores + causal, dim=-1)
            rows.append(np.pad(weights.numpy(), ((0, 0), (0, 0), (0, sizes.kv_length - q.size(2)))))
        return fused(q, k, *given, **options)

    with mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", record):
        yield rows


@contextmanager
def _record_estimator(model: Any, width: int) -> Iterator[list[RecordedCall]]:
    """Record the DiT's calls, in the order of the solver's steps.

    width: that of the time embeddings, which our step model takes instead of times.
    """
    calls: list[RecordedCall] = []

    def record(_: object, inputs: tuple[torch.Tensor, ...], velocity: torch.Tensor) -> None:
        x, mu, t, cond, dt = (tensor.numpy().copy() for tensor in inputs)
        times = {"t_embedding": time_embedding(t, width), "dt_embedding": time_embedding(dt, width)}
        call_inputs = {"x": x, "mu": mu, "cond": cond, **times}
        calls.append(RecordedCall(call_inputs, {"velocity": velocity.numpy().copy()}))

    handle = model.feat_decoder.estimator.register_forward_hook(record)
    try:
        yield calls
    finally:
        handle.remove()


@contextmanager
def _record_solves(model: Any) -> Iterator[list[dict[str, Any]]]:
    """Record the inputs of upstream's solver for each patch: x (the noise), mu, cond and cfg_value."""
    solves: list[dict[str, Any]] = []
    solve_euler = model.feat_decoder.solve_euler

    def recorded(**arguments: Any) -> Any:
        tensors = {name: arguments[name].clone() for name in ("x", "mu", "cond")}
        solves.append({**tensors, "cfg_value": arguments["cfg_value"]})
        return solve_euler(**arguments)

    with mock.patch.object(model.feat_decoder, "solve_euler", recorded):
        yield solves


def _record_solve(model: Any, a: Architecture, solve: dict[str, Any], steps: int) -> RecordedCall:
    """A call of `locdit_solve`, with the patch of upstream's solver in `steps` steps as output."""
    noise = solve["x"].numpy()
    mu, cond, cfg_value = solve["mu"], solve["cond"], solve["cfg_value"]
    with use_noise(SimpleNamespace(standard_normal=noise.reshape)):
        patch = model.feat_decoder(
            mu=mu, n_timesteps=steps, patch_size=a.patch_size, cond=cond, cfg_value=cfg_value
        )
    times, lengths = euler_steps(steps, skipped=names.zero_velocity_steps(steps))
    call_inputs = {
        "noise": noise,
        "mu": mu.numpy(),
        "cond": cond.numpy(),
        "t_embeddings": time_embedding(times, a.dit_config.hidden_dim),
        "step_lengths": lengths,
        "cfg_value": np.array([cfg_value], np.float32),
    }
    return RecordedCall(call_inputs, {"patch": patch.numpy()})
