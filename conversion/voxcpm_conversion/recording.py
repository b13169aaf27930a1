"""A recorded sentence: what each step model gets and returns in it, by the checkpoint's own modules in float32.

The built-in voice says the sentence. This checkpoint encodes it, and continues it under teacher forcing, so that only
one step model's weights are in memory at a time. Each step model of a bundle can then be run on the same inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from torch import Tensor, nn

from voxcpm_constants import step_models as names
from voxcpm_constants.arrays import EMBED_TOKENS, load_constants
from voxcpm_constants.manifest import CONSTANTS_FOLDER, Manifest
from voxcpm_constants.step_models import StepModel, declare_step_models, encoder_patches, parts
from voxcpm_constants.tokenizer_file import open_tokenizer
from voxcpm_constants.vectors import Array
from voxcpm_conversion.alignment import TEXTS
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.modules.voxcpm import VoxCPMModules
from voxcpm_conversion.step_modules import build_step, loaded_modules
from voxcpm_conversion.vectors import call_step
from voxcpm_runtime.backends.step_function import Floats, StepFunction
from voxcpm_runtime.model.audio_vae import encode_audio, patch_decoder
from voxcpm_runtime.model.flow_matching import solve, solve_at_once
from voxcpm_runtime.model.projections import Projections
from voxcpm_runtime.model.sequence import Sequence, build_sequence, plan_chunks
from voxcpm_runtime.options import DEFAULT_STEPS, GenerationOptions
from voxcpm_runtime.voxcpm import VoxCPM

Outputs = dict[str, Array]
"""Outputs of a step model over the whole sentence, by name; rows or patches are the first axis."""

TEXT = TEXTS[2]
MIN_POSITIONS = 16
"""A shorter KV cache does not hold the sentence."""
_MAX_PATCHES, _MAX_SOLVED = 16, 3
"""Patches of speech, and those that the DiT solves, which takes as long as all other step models."""
_LOUD = 0.1
"""Speech begins at this share of its peak."""
_OPTIONS = GenerationOptions()


class FloatStep:
    """The float32 module of a step model, or of a part of one, as a step function; its state is a dictionary."""

    def __init__(
        self, checkpoint: Checkpoint, manifest: Manifest, package: StepModel, modules: VoxCPMModules | None
    ) -> None:
        a = checkpoint.architecture
        # Language models take any length, and do not return attention.
        lengths = {"prefill_chunks": (1, manifest.sizes.kv_length), "alignment": ()}
        sizes = manifest.sizes.model_copy(update=lengths)
        declared = (part for model in declare_step_models(a, sizes).values() for part in parts(model, sizes))
        self._declared = next(part for part in declared if part.name == package.name)
        modules = modules or loaded_modules(checkpoint, self._declared, sizes)
        self.module = build_step(self._declared, modules, a, sizes)

    def new_state(self) -> Any:
        """See `StepFunction`."""
        return {t.name: np.zeros(t.shape_at(0), np.float32) for t in self._declared.state}

    def __call__(self, inputs: Mapping[str, Array], state: Any = None) -> Outputs:
        """See `StepFunction`."""
        outputs, after = call_step(self.module, self._declared, dict(inputs), state or {})
        if state is not None:
            state.update(after)
        return outputs


def watched_peaks(module: nn.Module) -> dict[str, float]:
    """The largest |value| of each layer's inputs and outputs so far, by its name; grows with each call of `module`."""
    peaks: dict[str, float] = {}

    def watch(name: str, layer: nn.Module) -> None:
        def seen(_: nn.Module, inputs: Any, outputs: Any) -> None:
            tensors = (*inputs, *(outputs if isinstance(outputs, tuple) else (outputs,)))
            # Not of |tensor|, which would be a copy: thirteen times as long.
            ends = [end for t in tensors if isinstance(t, Tensor) and t.numel() for end in t.aminmax()]
            peaks[name] = float(np.max([peaks.get(name, 0.0), *map(abs, ends)]))

        layer.register_forward_hook(seen)

    for name, layer in module.named_modules():
        if not any(layer.children()):
            watch(name, layer)
    return peaks


class Recording:
    """The sentence in one checkpoint; every part is computed on first use. folder: a bundle's, with its constants."""

    def __init__(self, checkpoint: Checkpoint, manifest: Manifest, folder: Path) -> None:
        self._checkpoint, self._manifest, self._folder = checkpoint, manifest, folder
        self._references: dict[str, Outputs] = {}
        self._peaks: dict[str, tuple[float, str]] = {}

    def float_step(self, package: StepModel, modules: VoxCPMModules | None = None) -> FloatStep:
        """The float32 module of a package. modules: with its weights, if they are in memory."""
        return FloatStep(self._checkpoint, self._manifest, package, modules)

    def reference(self, package: StepModel, modules: VoxCPMModules | None = None) -> Outputs:
        """What the float32 module of a package returns. modules: see `float_step`."""
        if package.name not in self._references:
            step = self.float_step(package, modules)
            peaks = watched_peaks(step.module)
            self._references[package.name] = self.run(package, step, whole=True)
            self._peaks[package.name] = max((peak, name) for name, peak in peaks.items())
        return self._references[package.name]

    def peak(self, package: StepModel) -> tuple[float, str]:
        """The largest |value| that any layer of a package gets or returns, and that layer's name."""
        self.reference(package)
        return self._peaks[package.name]

    def run(self, package: StepModel, model: StepFunction, *, whole: bool = False) -> Outputs:
        """What a step model returns for the sentence. whole: in one call, where a module allows it."""
        name, a = package.name, self._manifest.architecture
        match name:
            case names.AUDIO_VAE_ENCODER:
                latents = encode_audio(model, self._speech, a.patch_input_samples, encoder_patches(a))
                return {"latents": latents}
            case names.AUDIO_VAE_DECODER:
                patches = [np.concatenate([*self._patches])] if whole else self._patches
                return {"audio": np.concatenate([*map(patch_decoder(model), patches)])}
            case names.FEAT_ENCODER:
                chunks = [self._patches] if whole else self._patches[:, None]
                rows = (model({"patches": chunk[None]})["embeddings"][0] for chunk in chunks)
                return {"embeddings": np.concatenate([*rows])}
            case names.LOCDIT_STEP | names.LOCDIT_SOLVE:
                solved = range(min(_MAX_SOLVED, len(self._patches)))
                return {"patch": np.stack([self._solved(name, model, index) for index in solved])}
            case names.RESIDUAL_LM_STEP:
                return self._language_model(model, self._residual_input, whole=whole)
        outputs = self._language_model(model, self._base_input(package), whole=whole)
        if names.PART_OUTPUT in outputs:
            return outputs
        # Speech depends on these rows only.
        return {
            "hidden": outputs["hidden"][: self._text_length],
            "fsq_hidden": outputs["fsq_hidden"][self._text_length :],
            "stop_logits": outputs["stop_logits"][self._text_length - 1 :],
        }

    def _language_model(self, model: StepFunction, embeddings: Floats, *, whole: bool) -> Outputs:
        sizes, count, text = self._manifest.sizes, len(embeddings), self._text_length
        prefill = plan_chunks(text, sizes.prefill_chunks, capacity=sizes.kv_length)
        steps = [*prefill, *((index, 1, 1) for index in range(text, count))]
        state, rows = model.new_state(), list[Outputs]()
        for start, length, size in [(0, count, count)] if whole else steps:
            chunk = np.zeros((1, size, embeddings.shape[1]), np.float32)
            chunk[0, :length] = embeddings[start : start + length]
            outputs = model({"embeddings": chunk, "position": np.array([start], np.int32)}, state)
            rows.append({name: array[0, :length] for name, array in outputs.items()})
        return {name: np.concatenate([row[name] for row in rows]) for name in rows[0] if name in rows[-1]}

    def _solved(self, name: str, model: StepFunction, index: int) -> Floats:
        a = self._manifest.architecture
        noise = np.random.default_rng(index).standard_normal((a.feat_dim, a.patch_size), np.float32)
        before = self._patches[index - 1] if index else np.zeros_like(self._patches[0])
        given = noise, self._conditions[index], np.ascontiguousarray(before.T)
        options: dict[str, Any] = {"cfg_value": _OPTIONS.cfg_value, "embedding_size": a.dit_config.hidden_dim}
        if name == names.LOCDIT_SOLVE:
            return solve_at_once(model, *given, steps=self._manifest.sizes.solver_steps, **options)
        return solve(model, *given, steps=DEFAULT_STEPS, mean_mode=a.mean_mode, **options)

    @cached_property
    def _speech(self) -> Floats:
        """Speech (samples,) at the encoder's rate, whole patches of it."""
        a, voice = self._manifest.architecture, VoxCPM.from_bundle(None)
        speech = soxr.resample(voice.generate(TEXT, seed=0), voice.sample_rate, a.input_sample_rate)
        speech = speech[np.argmax(np.abs(speech) > _LOUD * np.abs(speech).max()) :]
        count = min(_MAX_PATCHES, self._manifest.sizes.kv_length // 2, len(speech) // a.patch_input_samples)
        return speech[: count * a.patch_input_samples]

    def _of(self, step_model: str) -> Outputs:
        return self.reference(self._manifest.parts(step_model)[-1])

    @property
    def _patches(self) -> Floats:
        return self._of(names.AUDIO_VAE_ENCODER)["latents"]

    @cached_property
    def _sequence(self) -> Sequence:
        """The text, as much of it as fits, then the speech."""
        tokenizer, _ = open_tokenizer(self._checkpoint.folder, needs_config=False)
        ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
        room = self._manifest.sizes.kv_length - len(self._patches) - 1
        return build_sequence(ids[:room], self._patches.shape[1:], prompt=self._patches)

    @property
    def _text_length(self) -> int:
        return len(self._sequence) - len(self._patches)

    @cached_property
    def _constants(self) -> Mapping[str, Any]:
        return load_constants(self._folder / CONSTANTS_FOLDER, self._manifest.architecture)

    @cached_property
    def _projections(self) -> Projections:
        return Projections(self._manifest.architecture.traits, self._constants)

    def _base_input(self, package: StepModel) -> Floats:
        own = self._manifest.parts(names.BASE_LM_STEP)
        index = [part.name for part in own].index(package.name)
        if index:
            return self.reference(own[index - 1])[names.PART_OUTPUT]
        tokens = self._sequence.tokens[: self._text_length]
        text = np.asarray(self._constants[EMBED_TOKENS][tokens], np.float32)
        text *= self._manifest.architecture.text_embedding_scale
        return np.concatenate((text, self._of(names.FEAT_ENCODER)["embeddings"]))

    @cached_property
    def _hidden(self) -> Floats:
        outputs = self._of(names.BASE_LM_STEP)
        return np.concatenate((outputs["hidden"], outputs["fsq_hidden"]))

    @property
    def _residual_input(self) -> Floats:
        heard = np.zeros_like(self._hidden)
        heard[self._text_length :] = self._of(names.FEAT_ENCODER)["embeddings"]
        return self._projections.residual_input(self._hidden, heard)

    @cached_property
    def _conditions(self) -> Floats:
        """The DiT's condition of each patch."""
        rows = slice(self._text_length - 1, None)
        return self._projections.dit_condition(
            self._hidden[rows], self._of(names.RESIDUAL_LM_STEP)["hidden"][rows]
        )
