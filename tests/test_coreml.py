"""The same packages on Core ML and on the portable executor. These tests run on a Mac only."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest

from voxcpm_constants.step_models import (
    BASE_LM_STEP,
    FEAT_ENCODER,
    LOCDIT_STEP,
    RESIDUAL_LM_STEP,
    STEP_MODEL_NAMES,
    StepModel,
)
from voxcpm_runtime.backends.loading import load_step_models
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.measures import agreement

pytestmark = pytest.mark.coreml

# Core ML computes fp16 packages in fp16, the portable executor in float32.
FLOORS = {"fp32": 0.99999, "fp16": 0.999, "int8": 0.99}


def _inputs(declared: StepModel, chunk: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        tensor.name: np.zeros(tensor.shape_at(chunk), np.int32)
        if tensor.dtype == "int32"
        else generator.standard_normal(tensor.shape_at(chunk), np.float32)
        for tensor in declared.inputs
    }


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("name", STEP_MODEL_NAMES)
def test_step_model_at_every_chunk_length(tiny_bundle: Path, precision: str, name: str) -> None:
    _agrees_at_every_chunk_length(tiny_bundle, precision, name)


@pytest.mark.skipif(
    int(platform.mac_ver()[0].partition(".")[0] or 0) < 15, reason="Core ML has states from macOS 15 on"
)
@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("name", [BASE_LM_STEP, RESIDUAL_LM_STEP])
def test_functions_and_states_of_macos_15(tiny_bundle_15: Path, precision: str, name: str) -> None:
    _agrees_at_every_chunk_length(tiny_bundle_15, precision, name)


@pytest.mark.parametrize("name", [FEAT_ENCODER, BASE_LM_STEP, RESIDUAL_LM_STEP, LOCDIT_STEP])
def test_step_models_for_several_utterances(tiny_batch_bundle: Path, name: str) -> None:
    _agrees_at_every_chunk_length(tiny_batch_bundle, "fp16", name)


def _agrees_at_every_chunk_length(folder: Path, precision: str, name: str) -> None:
    bundle = open_bundle(folder, precision)
    declared = bundle.manifest.step_models[name]
    models = [load_step_models(bundle, backend, names=[name])[name] for backend in ("coreml", "portable")]  # type: ignore[arg-type]
    generator = np.random.default_rng(0)
    for chunk in range(declared.chunk_count):
        states = [model.new_state() if declared.state else None for model in models]
        for _ in range(2):
            inputs = _inputs(declared, chunk, generator)
            ours, portable = (model(inputs, state) for model, state in zip(models, states, strict=True))
            for output in declared.outputs:
                found = agreement(ours[output.name], portable[output.name])
                assert found.correlation > FLOORS[precision], (chunk, output.name)


def test_speech_on_core_ml(speaking_bundle: Path) -> None:
    text = "the river runs slowly to the sea."
    ours, portable = (
        VoxCPM.from_bundle(speaking_bundle, precision="fp16", backend=backend).speak(
            text, seed=1, max_len=12, min_len=12
        )  # type: ignore[arg-type]
        for backend in ("coreml", "portable")
    )
    assert agreement(ours.latents[:2], portable.latents[:2]).correlation > 0.99
