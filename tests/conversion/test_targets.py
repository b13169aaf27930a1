"""Bundles for macOS 15: caches as Core ML states, prefill and decode as functions that share their weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from voxcpm_constants.manifest import Manifest, package_path
from voxcpm_constants.step_models import (
    BASE_LM_STEP,
    RESIDUAL_LM_STEP,
    StepSizes,
)
from voxcpm_conversion.core_ml.toolchain import import_coremltools
from voxcpm_runtime.backends.portable.package import read_package
from voxcpm_runtime.voxcpm import VoxCPM

SIZES = StepSizes(kv_length=128)
TEXT = "the you and the world and all that is in it"
LM_STEPS = (BASE_LM_STEP, RESIDUAL_LM_STEP)


@pytest.fixture
def bundle(tiny_bundle_15: Path) -> Path:
    return tiny_bundle_15


def _description(package: Path) -> object:
    return import_coremltools().utils.load_spec(str(package)).description


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("name", LM_STEPS)
def test_language_models_have_a_function_a_length_and_keep_their_caches(
    bundle: Path, name: str, precision: str
) -> None:
    declared = Manifest.read(bundle).step_models[name]
    description = _description(bundle / package_path(precision, name))
    assert description.defaultFunctionName == "decode"  # type: ignore[attr-defined]
    functions = {f.name: f for f in description.functions}  # type: ignore[attr-defined]
    assert list(functions) == ["decode", "prefill_16", "prefill_64"]
    for function, length in zip(functions.values(), (1, 16, 64), strict=True):
        inputs = {t.name: list(t.type.multiArrayType.shape) for t in function.input}
        assert inputs == {"embeddings": [1, length, 64], "position": [1]}
        assert {t.name for t in function.output} == {t.name for t in declared.outputs}
        states = {t.name: tuple(t.type.stateType.arrayType.shape) for t in function.state}
        assert states == {t.name: t.shape for t in declared.state}


@pytest.mark.parametrize("name", LM_STEPS)
def test_caches_are_updated_in_place_by_slices(bundle: Path, name: str) -> None:
    kinds = Counter(op.kind for op in read_package(bundle / package_path("fp16", name), "decode").operations)
    states = len(Manifest.read(bundle).step_models[name].state)
    assert (kinds["slice_update"], kinds["write_state"], kinds["scatter"]) == (states, states, 0)


def test_speech_is_that_of_the_macos_14_bundle(bundle: Path, tiny_bundle: Path) -> None:
    ours, theirs = (
        VoxCPM.from_bundle(folder, "fp16").speak(TEXT, seed=1, min_len=8, max_len=8)
        for folder in (bundle, tiny_bundle)
    )
    np.testing.assert_array_equal(ours.latents, theirs.latents)
    np.testing.assert_array_equal(ours.audio, theirs.audio)


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_functions_share_their_weights(bundle: Path, tiny_bundle: Path, precision: str) -> None:
    def size(folder: Path) -> int:
        return sum(
            p.stat().st_size for p in (folder / package_path(precision, BASE_LM_STEP)).rglob("weight.bin")
        )

    # Three copies would be three times as large. Each function has its own rotary tables, which are large only here.
    assert size(bundle) < 1.7 * size(tiny_bundle)
