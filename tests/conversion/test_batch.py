"""Step models for several utterances at once advance each utterance as if it were alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from voxcpm_constants.manifest import Manifest, package_path
from voxcpm_constants.step_models import (
    BASE_LM_STEP,
    RESIDUAL_LM_STEP,
    Precision,
    StepModel,
    StepSizes,
    declare_step_models,
)
from voxcpm_constants.targets import Target, package_form
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.core_ml.packages import add_packages
from voxcpm_conversion.modules.voxcpm import empty_modules
from voxcpm_conversion.step_modules import build_step, example_inputs, step_parameter_names
from voxcpm_conversion.workspace import Workspace
from voxcpm_runtime.backends.loading import load_portable_step_model
from voxcpm_runtime.backends.portable import PortableStepModel

LM_STEPS = (BASE_LM_STEP, RESIDUAL_LM_STEP)
ALONE, TOGETHER = StepSizes(kv_length=128), StepSizes(kv_length=128, batch=3)
# float32 through a few layers; the values compared are of order 1.
TOLERANCE = 5e-5

# Chunk length, and position of each utterance's first embedding; the positions always differ.
STREAM = ((16, (0, 5, 40)), (1, (16, 21, 56)), (1, (17, 22, 57)), (16, (18, 23, 112)))

Inputs = dict[str, np.ndarray]
Outputs = dict[str, np.ndarray]


class Generation:
    """The step models of one checkpoint: for one utterance in torch, and for three as packages."""

    def __init__(self, checkpoint: Path, package: Callable[[str], Path]) -> None:
        self.checkpoint = Checkpoint.open(checkpoint)
        self.package = package
        self.alone = declare_step_models(self.checkpoint.architecture, ALONE)
        self.together = declare_step_models(self.checkpoint.architecture, TOGETHER)

    def portable(self, name: str) -> PortableStepModel:
        state = {t.name: t.output_name for t in self.together[name].state}
        return PortableStepModel(self.package(name), threads=1, state=state)

    @torch.inference_mode()
    def stream(self, name: str, calls: list[Inputs]) -> list[Outputs]:
        """The outputs of each call of the step model for one utterance, and the state after the call."""
        a, declared = self.checkpoint.architecture, self.alone[name]
        modules = empty_modules(a)
        self.checkpoint.load_into(modules, step_parameter_names(declared, modules, a, ALONE))
        step = build_step(declared, modules, a, ALONE)
        state = example_inputs(declared.state, 0)
        names = [*(t.name for t in declared.outputs), *(t.name for t in declared.state)]
        results = []
        for call in calls:
            result = step(*(torch.from_numpy(call[t.name]) for t in declared.inputs), *state)
            result = result if isinstance(result, tuple) else (result,)
            state = result[len(declared.outputs) :]
            results.append({n: t.numpy().copy() for n, t in zip(names, result, strict=True)})
        return results


def _packages(
    checkpoint: Path,
    folder: Path,
    names: tuple[str, ...],
    precision: Precision = "fp32",
    target: Target = "macOS14",
) -> Callable[[str], Path]:
    """Step models for three utterances; the function gives the path of a package."""
    opened, workspace = Checkpoint.open(checkpoint), Workspace(folder / "bundle", {})
    declared = declare_step_models(opened.architecture, TOGETHER)
    for name in names:
        form = package_form(declared[name], target)
        add_packages(workspace, opened, declared[name], form, TOGETHER, [precision], target)
    return lambda name: workspace.folder / package_path(precision, name)


@pytest.fixture(scope="module")
def second_generation(second_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Generation:
    """VoxCPM2's structure; `test_batch_bundle.py` compares the first generation's speech."""
    return Generation(
        second_checkpoint, _packages(second_checkpoint, tmp_path_factory.mktemp("second"), LM_STEPS)
    )


def _lm_calls(declared: StepModel, rng: np.random.Generator) -> list[Inputs]:
    batch, _, width = declared.inputs[0].shape_at(0)
    return [
        {
            "embeddings": rng.standard_normal((batch, length, width), np.float32),
            "position": np.array(positions[:batch], np.int32),
        }
        for length, positions in STREAM
    ]


def _of(call: Inputs, item: int) -> Inputs:
    return {name: array[item : item + 1] for name, array in call.items()}


def _cache_of(cache: np.ndarray, item: int) -> np.ndarray:
    """One utterance's part of the caches, which are concatenated on the axis of positions."""
    return cache[:, :, item * TOGETHER.kv_length : (item + 1) * TOGETHER.kv_length]


def test_a_batch_changes_only_these_interfaces(tiny_batch_bundle: Path) -> None:
    manifest = Manifest.read(tiny_batch_bundle)
    alone = declare_step_models(manifest.architecture, ALONE)
    shapes = {
        name: {t.name: t.shape for t in (*model.inputs, *model.outputs, *model.state[:2])}
        for name, model in manifest.step_models.items()
    }
    assert shapes["residual_lm_step"] == {
        "embeddings": (3, (1, 16, 64), 64),
        "position": (3,),
        "hidden": (3, (1, 16, 64), 64),
        "k_cache_00": (1, 2, 384, 16),
        "v_cache_00": (1, 2, 384, 16),
    }
    assert shapes["base_lm_step"]["stop_logits"] == (3, (1, 16, 64), 2)
    latents = (6, manifest.architecture.feat_dim, manifest.architecture.patch_size)
    assert shapes["locdit_step"] == {
        "x": latents, "mu": (6, 64), "t_embedding": (6, 64), "cond": latents,
        "dt_embedding": (6, 64), "velocity": latents,
    }  # fmt: skip
    assert shapes["feat_encoder"]["embeddings"] == (1, (1, 3, 16), 64)
    for name in ("audio_vae_encoder", "audio_vae_decoder"):
        assert manifest.step_models[name] == alone[name]


@pytest.mark.parametrize(
    ("batch", "patches"), [(1, (1, 16)), (4, (1, 4, 16)), (16, (1, 16)), (32, (1, 16, 32))]
)
def test_the_feat_encoder_takes_a_patch_of_each_utterance(batch: int, patches: tuple[int, ...]) -> None:
    assert StepSizes(batch=batch).encode_patches == patches


@pytest.mark.parametrize("name", LM_STEPS)
def test_each_utterance_is_advanced_as_if_alone(second_generation: Generation, name: str) -> None:
    generation = second_generation
    model, calls = generation.portable(name), _lm_calls(generation.together[name], np.random.default_rng(0))
    state = model.new_state()
    together = [model(call, state) for call in calls]
    for item in range(TOGETHER.batch):
        alone = generation.stream(name, [_of(call, item) for call in calls])
        for ours, expected in zip(together, alone, strict=True):
            for output in ours:
                np.testing.assert_allclose(ours[output][item], expected[output][0], rtol=0, atol=TOLERANCE)
        for tensor in generation.alone[name].state:
            cache = _cache_of(state.numpy(tensor.name), item)
            np.testing.assert_allclose(cache, alone[-1][tensor.name], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", LM_STEPS)
def test_caches_are_written_in_place(tiny_batch_bundle: Path, name: str) -> None:
    manifest = Manifest.read(tiny_batch_bundle)
    state = load_portable_step_model(tiny_batch_bundle, manifest, "int8", name).new_state()
    assert state.in_place == {t.name for t in manifest.step_models[name].state}


def test_macos_15_keeps_the_caches_of_all_utterances(
    tiny_checkpoint: Path, tiny_batch_bundle: Path, tmp_path: Path
) -> None:
    """The arithmetic is that of macOS 14, so the bits are equal."""
    name, manifest = RESIDUAL_LM_STEP, Manifest.read(tiny_batch_bundle)
    declared = manifest.step_models[name]
    package = _packages(tiny_checkpoint, tmp_path, (name,), "fp16", "macOS15")(name)
    calls, state = (
        _lm_calls(declared, np.random.default_rng(5)),
        {t.name: t.output_name for t in declared.state},
    )
    functions = dict(zip((1, 16, 64), package_form(declared, "macOS15").functions, strict=True))
    models = {
        length: PortableStepModel(package, function=functions[length], state=state, threads=1)
        for length in (1, 16)
    }
    ours, theirs = models[1].new_state(), None
    other: Any = load_portable_step_model(tiny_batch_bundle, manifest, "fp16", name, threads=1)
    theirs = other.new_state()
    for call in calls:
        length = call["embeddings"].shape[1]
        np.testing.assert_array_equal(models[length](call, ours)["hidden"], other(call, theirs)["hidden"])
    np.testing.assert_array_equal(ours.numpy("k_cache_00"), theirs.numpy("k_cache_00"))
    assert models[16].new_state().in_place == set(state)
