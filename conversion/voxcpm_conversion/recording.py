"""A recorded sentence: what each step model gets and returns in it, by the checkpoint's own modules in float32.

The built-in voice says the sentence. This checkpoint encodes it, and continues it under teacher forcing, so that only
one step model's weights are in memory at a time. Each step model of a bundle can then be run on the same inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import soxr
import torch
from torch import Tensor, nn

from voxcpm_constants import step_models as names
from voxcpm_constants.arrays import load_constants
from voxcpm_constants.manifest import CONSTANTS_FOLDER, Manifest
from voxcpm_constants.step_models import StepModel, declare_step_models
from voxcpm_constants.tokenizer_file import open_tokenizer
from voxcpm_constants.vectors import Array
from voxcpm_conversion.alignment import TEXTS
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.modules.voxcpm import VoxCPMModules
from voxcpm_conversion.step_modules import build_step, loaded_modules
from voxcpm_conversion.vectors import call_step
from voxcpm_runtime.backends.step_function import Floats, StepFunction
from voxcpm_runtime.model.audio_vae import patch_decoder
from voxcpm_runtime.model.driver import Driver, Prefilled
from voxcpm_runtime.model.projections import Projections
from voxcpm_runtime.model.sequence import Sequence, build_sequence
from voxcpm_runtime.options import DEFAULT_STEPS, GenerationOptions
from voxcpm_runtime.voxcpm import VoxCPM

Outputs = dict[str, Array]
"""Outputs of a step model over the whole sentence, by name; rows or patches are the first axis."""

TEXT = TEXTS[2]
MIN_POSITIONS = 16
"""A shorter KV cache does not hold the sentence."""
_MAX_PATCHES, _MAX_SOLVED = 16, 3
"""Patches of speech, and those that the DiT solves, which takes as long as all other step models."""
_WHOLE = 128
"""Positions that a language model's module takes in one call: more than the sentence has."""
WEIGHTED = (nn.Linear, nn.Conv1d, nn.ConvTranspose1d)
"""The layers whose weights can be quantised."""
_LOUD = 0.1
"""Speech begins at this share of its peak."""


class Heard(NamedTuple):
    """What a layer of a module gets and returns in the sentence."""

    peak: float = 0.0
    """The largest |value| of its inputs and outputs."""
    inputs: Any = 0.0
    """The sum of squares of each input channel (inputs,) of a matrix or a convolution."""
    outputs: float = 0.0
    """The sum of squares of its outputs, less their mean: only the difference of both stop logits decides."""


@contextmanager
def hearing(module: nn.Module) -> Iterator[dict[str, Heard]]:
    """What the innermost layers of a module hear until the end of the context, by name."""
    heard: dict[str, Heard] = {}

    def hear(name: str, layer: nn.Module, inputs: Any, outputs: Any) -> None:
        tensors = (*inputs, *(outputs if isinstance(outputs, tuple) else (outputs,)))
        # Without copies: |tensor| takes thirteen times as long.
        ends = [abs(end) for t in tensors if isinstance(t, Tensor) and t.numel() for end in t.aminmax()]
        was = heard.get(name, Heard())
        heard[name] = was._replace(peak=float(np.max([was.peak, *ends])))
        if isinstance(layer, WEIGHTED):
            x, axis = inputs[0], -1 if isinstance(layer, nn.Linear) else -2
            others = [each for each in range(-x.ndim, 0) if each != axis]
            energies = was.inputs + torch.linalg.vector_norm(x, dim=others).square()
            power = was.outputs + float(outputs.var(axis, correction=0).sum()) * outputs.shape[axis]
            heard[name] = heard[name]._replace(inputs=energies, outputs=power)

    innermost = ((name, layer) for name, layer in module.named_modules() if not any(layer.children()))
    hooks = [layer.register_forward_hook(partial(hear, name)) for name, layer in innermost]
    try:
        yield heard
    finally:
        for each in hooks:
            each.remove()


class FloatStep:
    """The float32 module of a step model, or of a part of one, as a step function; its state is a dictionary."""

    releases_gil = True

    def __init__(
        self, checkpoint: Checkpoint, manifest: Manifest, package: StepModel, modules: VoxCPMModules | None
    ) -> None:
        self._declared, self._checkpoint, sizes = package, checkpoint, manifest.sizes
        self._modules = modules or loaded_modules(checkpoint, package, sizes)
        self.module = build_step(package, self._modules, checkpoint.architecture, sizes)

    def restore(self, layer: Any) -> None:
        """Read the weight of one of the module's layers again."""
        (name,) = (name for name, weight in self._modules.named_parameters() if weight is layer.weight)
        layer.weight.data.copy_(self._checkpoint.tensor(name))

    def new_state(self) -> Any:
        """See `StepFunction`."""
        return {t.name: np.zeros(t.shape_at(0), np.float32) for t in self._declared.state}

    def __call__(self, inputs: Mapping[str, Array], state: Any = None) -> Outputs:
        """See `StepFunction`."""
        outputs, after = call_step(self.module, self._declared, dict(inputs), state or {})
        if state is not None:
            state.update(after)
        return outputs


class Recording:
    """The sentence in one checkpoint; every part is computed on first use. folder: a bundle's, with its constants."""

    def __init__(self, checkpoint: Checkpoint, manifest: Manifest, folder: Path) -> None:
        self._checkpoint, self._manifest, self._folder = checkpoint, manifest, folder
        self._references: dict[str, Outputs] = {}
        self.heard: dict[str, Mapping[str, Heard]] = {}
        """What the layers of each package with a reference hear, by name; nothing of those that are never called."""
        # Modules take any length in one call, and their attention is not needed.
        lengths = tuple(range(1, min(_WHOLE, manifest.sizes.kv_length) + 1))
        sizes = {"prefill_chunks": lengths, "encode_patches": lengths, "alignment": ()}
        whole = manifest.sizes.model_copy(update=sizes)
        update = {"sizes": whole, "step_models": declare_step_models(manifest.architecture, whole)}
        self._whole = manifest.model_copy(update=update)

    def float_step(self, package: StepModel, modules: VoxCPMModules | None = None) -> FloatStep:
        """The float32 module of a package. modules: with its weights, if they are in memory."""
        declared = next(whole for whole in self._whole.packages if whole.name == package.name)
        return FloatStep(self._checkpoint, self._whole, declared, modules)

    def reference(self, package: StepModel, modules: VoxCPMModules | None = None) -> Outputs:
        """What the float32 module of a package returns. modules: see `float_step`."""
        if package.name not in self._references:
            step = self.float_step(package, modules)
            with hearing(step.module) as heard:
                self._references[package.name] = self.run(package, step)
            self.heard[package.name] = heard
        return self._references[package.name]

    def run(self, package: StepModel, model: StepFunction) -> Outputs:
        """What a step model returns for the sentence; a module gets as much as possible in one call."""
        name, whole = package.name, isinstance(model, FloatStep)
        sizes = (self._whole if whole else self._manifest).sizes
        if name == names.LOCDIT_STEP:
            sizes = sizes.model_copy(update={"solver_steps": 0})
        driver = Driver(self._manifest.architecture, sizes, self._constants, {name: model})
        match name:
            case names.AUDIO_VAE_ENCODER:
                return {"latents": driver.encode_prompt(self._speech)}
            case names.AUDIO_VAE_DECODER:
                patches = [np.concatenate([*self._patches])] if whole else self._patches
                return {"audio": np.concatenate([*map(patch_decoder(model), patches)])}
            case names.FEAT_ENCODER:
                return {"embeddings": driver.embed_patches(self._patches)}
            case names.LOCDIT_STEP | names.LOCDIT_SOLVE:
                options = GenerationOptions(inference_timesteps=sizes.solver_steps or DEFAULT_STEPS)
                solved = range(min(_MAX_SOLVED, len(self._patches)))
                found = (
                    driver.generate_patches(self._before(i), options, np.random.default_rng(i), 1)
                    for i in solved
                )
                return {"patch": np.stack([next(patches).latents for patches in found])}
        is_residual, text, state = name == names.RESIDUAL_LM_STEP, self._text_length, model.new_state()
        embeddings = self._residual_input if is_residual else self._base_input(package)
        steps = [0] if whole else [0, *range(text, len(embeddings))]
        spans = zip(steps, [*steps[1:], len(embeddings)], strict=True)
        rows = [driver.lm_step(name, state, embeddings[start:end], start) for start, end in spans]
        outputs = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        if "stop_logits" not in outputs:
            return outputs
        # Speech depends on these rows only.
        used = {"hidden": slice(text), "fsq_hidden": slice(text, None), "stop_logits": slice(text - 1, None)}
        return {name: outputs[name][rows] for name, rows in used.items()}

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

    def _base_input(self, package: StepModel) -> Floats:
        own = self._manifest.parts(names.BASE_LM_STEP)
        index = [part.name for part in own].index(package.name)
        if index:
            return self.reference(own[index - 1])[names.PART_OUTPUT]
        driver = Driver(self._manifest.architecture, self._manifest.sizes, self._constants, {})
        text = driver.embed_tokens(self._sequence.tokens[: self._text_length])
        return np.concatenate((text, self._of(names.FEAT_ENCODER)["embeddings"]))

    @cached_property
    def _hidden(self) -> Floats:
        outputs = self._of(names.BASE_LM_STEP)
        return np.concatenate((outputs["hidden"], outputs["fsq_hidden"]))

    @property
    def _residual_input(self) -> Floats:
        heard = np.zeros_like(self._hidden)
        heard[self._text_length :] = self._of(names.FEAT_ENCODER)["embeddings"]
        projections = Projections(self._manifest.architecture.traits, self._constants)
        return projections.residual_input(self._hidden, heard)

    def _before(self, index: int) -> Prefilled:
        """What the DiT gets for a patch; it needs no states."""
        row, no_state = self._text_length - 1 + index, cast(Any, None)
        return Prefilled(
            no_state, no_state, row, hidden=self._hidden[row],
            residual_hidden=self._of(names.RESIDUAL_LM_STEP)["hidden"][row], stop_logits=np.zeros(2, np.float32),
            last_patch=self._patches[index - 1] if index else np.zeros_like(self._patches[0]),
        )  # fmt: skip
