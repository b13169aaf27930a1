"""The loop of upstream's `_inference`: prefill both language models, then for each patch DiT, encoder, LM steps.

embed ─► base LM ─► hidden (text) or fsq_hidden (audio) ─┬─► DiT condition ◄── residual LM
                                                         └─► residual input ──────┘
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from voxcpm_constants import step_models as names
from voxcpm_constants.architecture import Architecture
from voxcpm_constants.arrays import EMBED_TOKENS
from voxcpm_constants.errors import BundleError, InputError
from voxcpm_constants.manifest import CONSTANTS_FOLDER
from voxcpm_runtime.audio.pcm import Audio
from voxcpm_runtime.backends.step_function import Array, Floats, StepFunction, StepState
from voxcpm_runtime.model.audio_vae import encode_audio, patch_decoder
from voxcpm_runtime.model.flow_matching import NoiseSource, draw_noise, solve, solve_at_once
from voxcpm_runtime.model.projections import Projections
from voxcpm_runtime.model.sequence import Latents, Sequence, plan_chunks
from voxcpm_runtime.options import GenerationOptions

_STOP = 1


@dataclass(frozen=True)
class Prefix:
    """What the language models and the feat encoder compute for a voice, independent of the text to speak."""

    base_rows: dict[str, Floats]
    """The base model's keys and values of the voice (layers, kv_heads, positions, head_dim), by state tensor."""
    residual_rows: dict[str, Floats]  # The residual model's keys and values, likewise
    prompt_embeddings: Floats  # Embeddings of the prompt's patches (patches, hidden)


@dataclass(frozen=True)
class Prefilled:
    """Both KV caches after the sequence, and what the first patch needs.

    Generation writes only from `position` on, so it can restart from here any number of times.
    """

    base_state: StepState
    residual_state: StepState
    position: int
    hidden: Floats  # Last hidden state of the base model (hidden,): raw after text, quantised after audio
    residual_hidden: Floats  # Last hidden state of the residual model (hidden,)
    stop_logits: Floats  # Logits of the stop head (2,): continue, stop
    last_patch: Latents
    """The patch before the first generated one (frames, latent_dim); zeros after text."""
    attention: Floats | None = None
    """What the alignment heads attended to while `last_patch` was fed: (heads, positions before it).

    None before the first patch, and for bundles without such heads.
    """


@dataclass(frozen=True)
class Patch:
    """One generated patch."""

    index: int  # Index of the patch in the speech, from 0
    latents: Latents  # (frames, latent_dim)
    stops: bool  # Whether the speech ends with this patch
    before: Prefilled | None = None  # What it was generated from, to generate it again


class Driver:
    """The inference loop over a bundle's constants and step models. Stateless between calls."""

    def __init__(
        self,
        architecture: Architecture,
        sizes: names.StepSizes,
        constants: Mapping[str, npt.NDArray[np.floating]],
        models: Mapping[str, StepFunction],
        together: Callable[[], Mapping[str, StepFunction]] = dict,
    ) -> None:
        """together: returns the step models of several utterances, which are opened on first use."""
        self.architecture = architecture
        self.sizes = sizes
        self._embeddings = constants[EMBED_TOKENS]
        self._projections = Projections(architecture.traits, constants)
        self.models, self.together = models, functools.cache(together)
        self.check: Callable[[], object] = lambda: None

    def with_check(self, check: Callable[[], object]) -> Driver:
        """A copy that calls `check` before every step; it may raise, to cancel."""
        driver = copy.copy(self)
        driver.check = check
        return driver

    def encode_prompt(self, audio: Audio) -> Latents:
        """Latent patches (patches, frames, latent_dim) of prompt audio (samples,) at `input_sample_rate`.

        The audio is zero-padded on the left to whole patches.
        """
        return self._encode(np.pad(audio, (-len(audio) % self.architecture.patch_input_samples, 0)))

    def encode_reference(self, audio: Audio) -> Latents:
        """Latent patches of reference audio, like `encode_prompt` but padded on the right."""
        return self._encode(np.pad(audio, (0, -len(audio) % self.architecture.patch_input_samples)))

    def prefix(self, lead: Sequence, prompt: Latents) -> Prefix:
        """The prefix of a voice. lead: its positions before the text. prompt: its prompt's patches."""
        base, residual = states = self._new_states()
        if len(lead):
            self._run_language_models(lead, self.embed_patches(lead.patches), states, 0)
        return Prefix(base.rows(0, len(lead)), residual.rows(0, len(lead)), self.embed_patches(prompt))

    def prefill(self, sequence: Sequence, prefix: Prefix | None = None, shared: int = 0) -> Prefilled:
        """Run a sequence, which must fit the caches, through both language models.

        prefix: the voice's, if cached. shared: number of leading positions of the sequence that it covers.
        """
        states = self._new_states()
        if prefix is None:
            rest, embeddings = sequence, self.embed_patches(sequence.patches)
        else:
            for state, rows in zip(states, (prefix.base_rows, prefix.residual_rows), strict=True):
                state.set_rows(0, {name: array[:, :, :shared] for name, array in rows.items()})
            rest, embeddings = sequence.after(shared), prefix.prompt_embeddings
        return self._run_language_models(rest, embeddings, states, shared)

    def generate_patches(
        self, prefilled: Prefilled, options: GenerationOptions, rng: NoiseSource, limit: int, *, start: int = 0,
        ends: Callable[[bool, Floats | None], bool] | None = None, teacher: Items[Latents] | None = None,
    ) -> Generator[Patch, None, None]:  # fmt: skip
        """Yield at most `limit` patches; the last one is where the stop head ends the speech.

        The caches must have room for `limit` more positions. start: index of the first patch, if `prefilled` is
        `Patch.before` of an earlier one. ends: given the stop head's decision and `Prefilled.attention`, whether the
        speech ends. teacher: teacher forcing, patches (frames, latent_dim) to feed back instead of the predicted ones;
        then the stop head is ignored, and the length of `teacher` is a limit, too.

        Raises BundleError if a patch has infinities or NaN.
        """
        count = limit if teacher is None else min(limit, len(teacher))
        for index in range(start, count):
            patch = self._predict(prefilled, options, rng)
            if not np.isfinite(patch).all():
                raise BundleError(
                    f"patch {index} is not finite: the step models overflow; try another precision"
                )
            stops = index > options.min_len and int(np.argmax(prefilled.stop_logits)) == _STOP
            if ends is not None:
                stops = ends(stops, prefilled.attention)
            yield Patch(index, patch, stops, prefilled)
            if index + 1 == count or (stops and teacher is None):
                return
            fed = patch if teacher is None else np.asarray(teacher[index], np.float32)
            states = prefilled.base_state, prefilled.residual_state
            audio = self.embed_patches(fed[np.newaxis])
            prefilled = self._run(audio, audio, np.array([[True]]), states, prefilled.position, fed)

    def patch_decoder(self, sequence: Sequence) -> Callable[[Latents], Audio]:
        """A function that decodes generated patches, in order, to audio (samples,); the prompt's end is its context."""
        context = sequence.decoder_context(self.architecture.traits.decoder_context_patches)
        return patch_decoder(self.models[names.AUDIO_VAE_DECODER], context)

    def embed_tokens(self, tokens: npt.NDArray[np.int32]) -> Floats:
        """Text embeddings (tokens, hidden).

        Raises InputError for an id beyond the vocabulary, and BundleError for an embedding with infinities or NaN.
        """
        if tokens.max(initial=0) >= len(self._embeddings):
            raise InputError(
                f"the text has a token of id {tokens.max()}, but the vocabulary ends at {len(self._embeddings) - 1}; "
                "leave out special tokens"
            )
        rows = np.asarray(self._embeddings[tokens], np.float32)
        if not np.isfinite(rows).all():
            raise BundleError(
                f"{CONSTANTS_FOLDER}/{EMBED_TOKENS}.npy: expected finite numbers, found infinities or NaN in the row "
                "of a token; convert again"
            )
        return rows * np.float32(self.architecture.text_embedding_scale)

    def embed_patches(self, patches: Latents) -> Floats:
        """Audio embeddings (patches, hidden) of latent patches (patches, frames, latent_dim), which may be empty."""
        embeddings = np.zeros((len(patches), self.architecture.lm_config.hidden_size), np.float32)
        for start, length, size in plan_chunks(len(patches), self.sizes.encode_patches):
            outputs = self._call(names.FEAT_ENCODER, {"patches": _pad(patches[start : start + length], size)})
            embeddings[start : start + length] = outputs["embeddings"][0, :length]
        return embeddings

    def _new_states(self) -> tuple[StepState, StepState]:
        """The states of the base and the residual language model at the start of a stream."""
        return self.models[names.BASE_LM_STEP].new_state(), self.models[names.RESIDUAL_LM_STEP].new_state()

    def _run_language_models(
        self, sequence: Sequence, patch_embeddings: Floats, states: tuple[StepState, StepState], position: int
    ) -> Prefilled:
        """Run a sequence through both language models from cache `position` on."""
        is_audio = sequence.is_audio[:, np.newaxis]
        audio = np.zeros((len(sequence), self.architecture.lm_config.hidden_size), np.float32)
        audio[sequence.is_audio] = patch_embeddings
        embeddings = np.where(is_audio, audio, self.embed_tokens(sequence.tokens))
        prefilled = self._run(embeddings, audio, is_audio, states, position, sequence.last_patch)
        return replace(prefilled, attention=None)

    def _run(
        self, embeddings: Floats, audio: Floats, is_audio: npt.NDArray[np.bool_], states: tuple[StepState, StepState],
        position: int, last_patch: Latents,
    ) -> Prefilled:  # fmt: skip
        """Run both language models on embeddings (n, hidden), which are those of `audio` where is_audio (n, 1)."""
        outputs = self.lm_step(names.BASE_LM_STEP, states[0], embeddings, position)
        hidden = np.where(is_audio, outputs["fsq_hidden"], outputs["hidden"])
        residual_input = self._projections.residual_input(hidden, audio)
        residual = self.lm_step(names.RESIDUAL_LM_STEP, states[1], residual_input, position)
        rows = outputs.get(names.ATTENTION)
        return Prefilled(
            *states, position + len(embeddings), hidden=hidden[-1], residual_hidden=residual["hidden"][-1],
            stop_logits=outputs["stop_logits"][-1], last_patch=last_patch,
            attention=None if rows is None else rows[-1, :, :position].copy(),
        )  # fmt: skip

    def _encode(self, audio: Audio) -> Latents:
        samples = self.architecture.patch_input_samples
        encoder, chunks = self.models[names.AUDIO_VAE_ENCODER], names.encoder_patches(self.architecture)
        return encode_audio(encoder, audio, samples, chunks)

    def _predict(self, prefilled: Prefilled, options: GenerationOptions, rng: NoiseSource) -> Latents:
        shape = (1, self.architecture.feat_dim, self.architecture.patch_size)
        noise = draw_noise(rng, shape)[0] * np.float32(options.temperature)
        condition = self._projections.dit_condition(prefilled.hidden, prefilled.residual_hidden)
        given = (noise, condition, np.ascontiguousarray(prefilled.last_patch.T))
        solver: dict[str, Any] = {
            "steps": options.inference_timesteps,
            "cfg_value": options.cfg_value,
            "embedding_size": self.architecture.dit_config.hidden_dim,
            "sway_sampling_coef": options.sway_sampling_coef,
        }
        if options.use_cfg_zero_star and options.inference_timesteps == self.sizes.solver_steps:
            patch = solve_at_once(partial(self._call, names.LOCDIT_SOLVE), *given, **solver)
        else:
            patch = solve(
                partial(self._call, names.LOCDIT_STEP), *given, **solver,
                use_cfg_zero_star=options.use_cfg_zero_star, mean_mode=self.architecture.mean_mode,
            )  # fmt: skip
        return np.ascontiguousarray(patch.T)

    def _call(
        self, name: str, inputs: Mapping[str, Array], state: StepState | None = None
    ) -> dict[str, Array]:
        self.check()
        return self.models[name](inputs, state)

    def lm_step(self, name: str, state: StepState, embeddings: Floats, position: int) -> dict[str, Floats]:
        """Run a language model on embeddings (n, hidden) from cache `position` on: outputs (n, width) by name."""
        plan = plan_chunks(
            len(embeddings), self.sizes.prefill_chunks, position=position, capacity=self.sizes.kv_length
        )
        parts: list[dict[str, Floats]] = []
        for start, length, size in plan:
            chunk = _pad(embeddings[start : start + length], size)
            inputs = {"embeddings": chunk, "position": np.array([position + start], np.int32)}
            outputs = self._call(name, inputs, state)
            parts.append({name: output[0, :length] for name, output in outputs.items()})
        # `ATTENTION` is an output of some lengths only.
        shared = set(parts[0]).intersection(*parts)
        return {name: np.concatenate([part[name] for part in parts]) for name in shared}


def _pad(rows: Floats, size: int) -> Floats:
    """Rows (n, ...) as a batch of one (1, size, ...), padded with zeros."""
    batch = np.zeros((1, size, *rows.shape[1:]), np.float32)
    batch[0, : len(rows)] = rows
    return batch
