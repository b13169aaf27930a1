"""VoxCPM2's and 0.5B's structure on Apple's Core AI runtime: step models and whole utterances against upstream."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core_ai_agreement import FP32, Reference, check_fp32, check_utterances, measured, recorded
from voxcpm_constants.step_models import STEP_MODEL_NAMES, StepSizes
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.convert import convert
from voxcpm_conversion.synthetic import write_synthetic_checkpoint
from voxcpm_conversion.synthetic_presets import presets, write_tokenizer
from voxcpm_runtime.voxcpm import VoxCPM

pytest.importorskip("coreai_torch", exc_type=ImportError)


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VOXCPM_COREML_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def second(second_checkpoint: Path, second_bundle_27: Path) -> tuple[Any, Reference]:
    return recorded(second_checkpoint, second_bundle_27)


@pytest.mark.parametrize("name", STEP_MODEL_NAMES)
def test_step_models_of_the_second_generation_equal_upstream_at_every_length(
    second_bundle_27: Path, second: tuple[Any, Reference], name: str
) -> None:
    check_fp32(second_bundle_27, second[1], name)


def test_utterances_of_the_second_generation_in_every_mode(
    second: tuple[Any, Reference], second_bundle_27: Path, second_bundle: Path
) -> None:
    modes = check_utterances(
        second[0], VoxCPM.from_bundle(second_bundle_27, "fp32"), VoxCPM.from_bundle(second_bundle, "fp32")
    )
    assert len(modes) == 6


@pytest.fixture
def small() -> Iterator[Path]:
    """A synthetic checkpoint of 0.5B's properties: "tiny-kv" with one layer and one stage of the AudioVAE less."""
    config = presets()["tiny-kv"]
    config["lm_config"]["num_hidden_layers"] = 1
    for local in ("encoder_config", "dit_config"):
        config[local]["num_layers"] = 1
    config["audio_vae_config"] |= {"encoder_rates": [5, 4], "decoder_rates": [4, 5]}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint"
        write_tokenizer(Path(folder) / "tokenizer")
        write_synthetic_checkpoint(
            checkpoint, config, seed=0, dtype="float32", tokenizer=Path(folder) / "tokenizer"
        )
        yield checkpoint


def test_utterances_of_half_a_billion_parameters_properties(small: Path) -> None:
    """One key/value head of another size, plain convolutions, patches of four frames."""
    bundle = small.with_name("bundle")
    sizes = StepSizes(kv_length=128, prefill_chunks=(1,), encode_patches=(1,))
    convert(Checkpoint.open(small), bundle, precisions=("fp32",), sizes=sizes, target="macOS27")
    model, reference = recorded(small, bundle)
    for name in STEP_MODEL_NAMES:
        assert measured(bundle, "fp32", reference, name).lowest >= FP32, name
    assert check_utterances(model, VoxCPM.from_bundle(bundle, "fp32")) == ["zero-shot", "continuation"]
